"""`tangram predict`.

In: measured points. Out: the model's predictions beside them, and its errors.
"""
