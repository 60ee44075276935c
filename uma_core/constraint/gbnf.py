def to_lark(text, id_of):
    from llguidance.gbnf_to_lark import gbnf_to_lark
    return gbnf_to_lark(text)
