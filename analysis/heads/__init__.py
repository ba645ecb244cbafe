"""What heads learn and what their variants are worth, from the result files that training and ablations leave."""
