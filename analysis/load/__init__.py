"""Load tests of serving engines: their files, the account of a request and of the server."""
