"""How good the answers of an instructed model are: out of a set, by likelihood, or beside another's."""
