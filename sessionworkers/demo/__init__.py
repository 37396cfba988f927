"""``sessionworkers demo``: one small app under plain uvicorn workers and under sessionworkers, and who got it right."""
