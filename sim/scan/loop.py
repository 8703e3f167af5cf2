from functools import partial
import jax, jax.numpy as jnp
from jax import lax
from sim.scan.step import iterate

@partial(jax.jit, static_argnames=("shape","lengths_s","window","log_steps"), donate_argnames=("state","base"))
def advance(shape, lengths_s, window, log_steps, lanes, workloads, prices, base, state):
    terms = jax.tree.map(lambda leaf: leaf[lanes.plan], prices.terms)
    low = jnp.iinfo(state.key.dtype).min
    shift = (state.step - base).astype(state.key.dtype)
    state = state._replace(key=jnp.where(state.key == low, state.key, state.key + shift[None, :]))
    base = state.step

    def body(carry, _):
        carry, log, steps = iterate(shape, lengths_s, lanes, workloads, prices, terms, base, carry)
        return carry, (log, steps if log_steps else None)

    state, log = lax.scan(body, state, None, length=window)
    return base, state, log
