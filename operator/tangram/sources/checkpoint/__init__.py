"""What a source offers, and why it does not: the nouns that all kinds of sources share.

files      which files of a repository are those of a checkpoint, and what is wrong with the others
errors     the one error of a source, with the reason that ModelReady shows
answers    the part of an answer that was asked for, and when a read is repeated
"""
