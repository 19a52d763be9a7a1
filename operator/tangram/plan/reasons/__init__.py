"""Why a plan is as it is: frozen records with numbers, no text.

In: the types of the fleet. Out: the records that the other rooms of a plan return, and `words` reads.
"""
