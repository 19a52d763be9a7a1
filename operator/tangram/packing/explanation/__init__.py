"""Why a demand goes unserved, and which single change would serve it.

In: a problem and its packing. Out: claims, each of which a solve has confirmed.
"""
