"""Sharing of a job by a link: a page for people and chat programs, a picture of the curve, and the
page on which links are made."""
