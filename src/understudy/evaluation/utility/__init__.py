"""How useful text is: a model is trained on it and tested on real rows."""
