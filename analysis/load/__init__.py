"""Load tests of serving engines: their files, the account of a request, and the forecast under load with memory."""
