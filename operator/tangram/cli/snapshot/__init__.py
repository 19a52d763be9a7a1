"""`tangram snapshot`.

In: a cluster, read with the rights of the user. Out: a file that `tangram plan -f` reads.
"""
