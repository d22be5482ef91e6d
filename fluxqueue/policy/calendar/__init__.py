"""The calendar: when nodes are reserved or closed, by the wishes of administrators.

``recurrence`` turns a wish into instants, ``reservation`` reads a FluxReservation. Pure.
"""
