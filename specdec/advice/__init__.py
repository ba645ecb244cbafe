"""Would speculation pay? Costs, rounds along plain text, and a forecast for every gamma."""
