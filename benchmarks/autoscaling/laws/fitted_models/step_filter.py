"""An extended Kalman filter that fits the step coefficients of a queueing model to measured latency.

Source: the tuner of the queueing model of llm-d/llm-d-workload-variant-autoscaler, with its noise: 5 % drift
of each coefficient per reading, 5 % error of a measurement at 95 %; a reading above a chi-square of 7.378 is
rejected, and changes neither the estimate nor its covariance.
"""

from collections.abc import Callable

from benchmarks.autoscaling.laws.fitted_models.queueing_analyzer import StepCoefficients, derivatives

_DRIFT = 0.05
_ERROR = 0.05 / 1.96
_GATE = 7.378
_DEFAULTS = StepCoefficients(5e-3, 5e-5, 5e-8)  # where the first reading allows no guess
_MOST_CHANGE = 100.0  # a coefficient stays within this factor of where it began
_BASE_SHARE = 0.9  # of the time between tokens

Matrix = list[list[float]]


class StepFilter:
    """The estimate of the coefficients, and its covariance."""

    def __init__(self, start: StepCoefficients) -> None:
        self.estimate = start
        self._start = start
        self._covariance = _diagonal([(_DRIFT * value) ** 2 for value in start.values()])

    def update(
        self, measured: tuple[float, float], predict: Callable[[StepCoefficients], tuple[float, float]]
    ) -> bool:
        """Correct the estimate by measured TTFT and time per token; False: the reading is an outlier."""
        drift = _diagonal([(_DRIFT * value) ** 2 for value in self.estimate.values()])
        covariance = _add(self._covariance, drift)
        slopes = derivatives(predict, self.estimate)
        missed = [m - p for m, p in zip(measured, predict(self.estimate), strict=True)]
        noise = _diagonal([(_ERROR * value) ** 2 for value in measured])
        spread = _inverse(_add(_times(_times(slopes, covariance), _transposed(slopes)), noise))
        distance = sum(missed[i] * spread[i][j] * missed[j] for i in range(2) for j in range(2))
        if distance >= _GATE:
            return False
        gain = _times(_times(covariance, _transposed(slopes)), spread)
        corrected = [
            value + sum(k * m for k, m in zip(row, missed, strict=True))
            for value, row in zip(self.estimate.values(), gain, strict=True)
        ]
        bounds = [(value / _MOST_CHANGE, value * _MOST_CHANGE) for value in self._start.values()]
        self.estimate = StepCoefficients(
            *(min(max(value, low), high) for value, (low, high) in zip(corrected, bounds, strict=True))
        )
        self._covariance = _add(covariance, _times(_times(gain, slopes), covariance), sign=-1)
        return True


def guessed_coefficients(ttft: float, itl: float, inputs: float, outputs: float) -> StepCoefficients:
    """Return where the fit begins: the coefficients that explain one reading without a queue, or defaults.

    A step takes nine tenths of the time between tokens. What a prompt takes beyond it is (b + g) * I, and
    what a token takes beyond it is b + g * (I + (O + 1) / 2).
    """
    base = _BASE_SHARE * itl
    both = (ttft - base) / inputs
    context = (itl - base - both) / (inputs + (outputs + 1) / 2 - 1)
    guess = StepCoefficients(base, both - context, context)
    return guess if all(value > 0 for value in guess.values()) else _DEFAULTS


def _diagonal(values: list[float]) -> Matrix:
    return [[value if i == j else 0.0 for j in range(len(values))] for i, value in enumerate(values)]


def _add(a: Matrix, b: Matrix, sign: int = 1) -> Matrix:
    return [[x + sign * y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]


def _times(a: Matrix, b: Matrix) -> Matrix:
    columns = _transposed(b)
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a]


def _transposed(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


def _inverse(a: Matrix) -> Matrix:
    """Return the inverse of a matrix of two rows."""
    (p, q), (r, s) = a
    determinant = p * s - q * r
    return [[s / determinant, -q / determinant], [-r / determinant, p / determinant]]
