"""From a specification to a compiled grammar: caches, the pool of compile processes, and the walk that tries it out."""
