"""One stage per file: `run(state, plan) -> plan`, and `seal` if the stage must see the finished plan."""
