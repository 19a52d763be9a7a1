"""`tangram plan`.

In: files of a fleet. Out: its cheapest layout as a table, a document or a picture.
"""
