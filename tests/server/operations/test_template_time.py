"""Chat templates that compute for longer than they may."""

from __future__ import annotations

import jinja2
import pytest

from uma_core.server.operations.template_time import TimedEnvironment, limited

LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
CALLS = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
BLOCKS = (
    "{% macro f(n) %}{{ caller() if n }}{% endmacro %}"
    "{% macro g(n) %}{% call f(n) %}{{ g(n - 1) }}{{ g(n - 1) }}{% endcall %}{% endmacro %}{{ g(60) }}"
)


@pytest.mark.parametrize("source", [LOOPS, CALLS, BLOCKS])
def test_a_template_that_would_compute_for_days_ends(source: str) -> None:
    template = TimedEnvironment().from_string(source)
    with limited(0.05), pytest.raises(jinja2.TemplateError, match="for more than"):
        template.render()


def test_without_a_limit_templates_write_what_they_always_wrote() -> None:
    source = (
        "{% macro m(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}"
        "{% for x in [1, 2] recursive %}{{ loop.index }}{{ m(x) }}{% else %}none{% endfor %}"
        "{% call m(3) %}!{% endcall %}{% for x in [] %}{% else %}none{% endfor %}{% set step = 5 %}{{ step }}"
    )
    with limited(60.0):
        assert TimedEnvironment().from_string(source).render() == "1<1>2<2><3!>none5"
    assert TimedEnvironment().from_string("{% for x in 'ab' %}{{ x }}{% endfor %}").render() == "ab"
