"""The findings of EnergyLens beside ksim's: the table and the figures of docs/evidence/energylens.md."""
