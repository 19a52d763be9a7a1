"""Chat templates that attack the process that renders them; `n` is a variable of 10**9."""

# Each ends with an error of its own, of the sandbox, or of a limit; none ends with a prompt.
BOMBS = {
    # Escapes from the sandbox
    "attribute escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "escape by filter": "{{ ((messages | attr('__class__')).__base__).x }}",
    "escape by map": "{{ (['a'] | map(attribute='__class__') | first).__mro__ }}",
    "escape by format": "{{ '{0.__class__.__mro__}'.format(1).x.y }}",
    "globals escape": "{{ raise_exception.__globals__.sys }}",
    "self escape": "{{ self.__init__.__globals__.x }}",
    "cycler escape": "{{ cycler.__init__.__globals__.os }}",
    "generator escape": "{{ (messages | map('upper')).gi_frame.f_builtins }}",
    "dunder import": "{{ __import__('os').system('true') }}",
    "mutation": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import statement": "{% import 'os' as os %}{{ os.system('true') }}",
    "extends by name": "{% include messages[0].content %}",
    # Memory
    "multiplied string": "{{ 'a' * n }}",
    "multiplied list": "{{ [1] * n }}",
    "padding": "{{ 'a' | center(n) }}",
    "ljust": "{{ 'a'.ljust(n) }}",
    "percent width": "{{ ('%' ~ n ~ 'd') % 1 }}",
    "percent filter": "{{ ('%' ~ n ~ 'd') | format(1) }}",
    "format width": "{{ ('{:' ~ n ~ '}').format(1) }}",
    "batch": "{{ [1] | batch(n, 0) | list }}",
    "indent": "{{ 'a\\nb' | indent(n) }}",
    "tojson indent": "{{ [1] | tojson(indent=n) }}",
    "replace": "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(12) %}"
    "{% set ns.s = ns.s | replace('a', 'aaaaaaaa') %}{% endfor %}{{ ns.s }}",
    "join": "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(5) %}"
    "{% set ns.s = (ns.s | list) | join(ns.s) %}{% endfor %}{{ ns.s }}",
    "concatenation": "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "plus": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
    "sum of lists": "{% set ns = namespace(s=[1]) %}{% for i in range(12) %}"
    "{% set ns.s = [ns.s] * 8 | sum(start=[]) %}{% set ns.s = ([ns.s, ns.s, ns.s] * 9) | sum(start=[]) %}"
    "{% endfor %}{{ ns.s }}",
    "lipsum": "{{ lipsum(n=n) }}",
    # CPU time inside one call, or in a loop
    "power": "{{ (7 ** n) % 10 }}",
    "floor division": "{% set k = n // 150 %}{{ (7 ** k) // (3 ** k) % 2 }}",
    "huge product": "{% set ns = namespace(x=n) %}{% for i in range(40) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x % 10 }}",
    "endless loop": "{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% set x = 1 %}{% endfor %}{% endfor %}",
    "range above the limit": "{% for i in range(n) %}{% endfor %}",
    "quadratic strings": "{% set s = 'ab' * 300000 %}{% for i in range(99999) %}"
    "{% set x = s.count('ba' * 50 ~ 'c') %}{% endfor %}",
    # Depth and output
    "deep recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "mutual recursion": "{% macro f() %}{{ g() }}{% endmacro %}"
    "{% macro g() %}{{ f() }}{% endmacro %}{{ g() }}",
    "recursive loop": "{% for m in messages recursive %}{{ loop([messages]) }}"
    "{{ loop(messages) }}{% endfor %}",
    "long output": "{% for i in range(99999) %}{{ messages[0].content * 200 }}{% endfor %}",
}

# These attack the compiler, which evaluates constant expressions.
COMPILER_BOMBS = {
    "folded power": "{{ 10 ** (10 ** 10) }}",
    "folded string": "{{ 'a' * 10 ** 11 }}",
    "folded filter": "{{ 'a' | center(100000000000) }}",
    "deep nesting": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep list": "{{ " + "[" * 5_000 + "]" * 5_000 + " }}",
    "deep blocks": "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000,
}


def all_in_one() -> str:
    """One template that holds every bomb; the variable `bomb` names the one that goes off."""
    branches = "".join(f"{{% elif bomb == '{name}' %}}{source}" for name, source in BOMBS.items())
    return "{% if not bomb %}{{ messages[0].content }}" + branches + "{% endif %}"
