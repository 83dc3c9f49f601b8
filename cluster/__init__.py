"""Placement and health of actors: the Ray session, resources, the engine pool, the learner group."""
