"""The mathematics: normalisers, recurrent cells and one file per model. Imports nothing else of the suite."""
