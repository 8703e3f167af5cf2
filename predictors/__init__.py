"""Learned cost models. First form: constants of the analytic model fitted to measured steps (`predictors.fit`)."""
