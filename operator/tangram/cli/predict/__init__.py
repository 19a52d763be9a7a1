"""`tangram predict`.

In: a CSV file of measurements. Out: predictions for its rows and their errors.
"""
