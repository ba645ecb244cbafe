"""The formats in which drafters were published, one file for each family of them; `recognise` reads this folder."""
