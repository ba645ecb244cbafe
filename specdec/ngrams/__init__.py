"""Tables and indexes of n-grams that drafters look tokens up in."""
