"""How well the model predicts.

In: measured points. Out: predictions beside them, scores, corrections.
"""
