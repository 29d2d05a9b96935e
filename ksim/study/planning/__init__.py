"""The best deployment of many: `ksim.plan` makes candidates, estimates them, and simulates the finalists."""
