"""arithmetic_here: what linears are multiplied with on this machine, for who asks without an engine. No torch."""


def arithmetic_here() -> str:
    """As EngineInfo.arithmetic. Loads the compiler, which takes a moment: the API process asks its engine."""
    from loraplex.quant.arithmetic import ARITHMETIC

    return ARITHMETIC
