"""What this project itself measured of the papers' claims, of heads, of predictions and of a GPU: read from committed
results and chosen runs, apart from what every run needs.
"""
