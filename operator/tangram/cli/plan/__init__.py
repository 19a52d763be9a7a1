"""`tangram plan`.

In: files that describe a fleet. Out: its cheapest layout as a table, a document or a picture.
"""
