from coa.maths import Comparer


def test_an_answer_that_takes_for_ever_is_not_equal_and_the_next_one_is_compared() -> None:
    comparer = Comparer(limit_s=1.0)
    assert not comparer.equal("$9^{9^{9}}$", ("3",))
    assert comparer.equal("$\\frac{1}{2}$", ("0.5",))
    comparer.close()


def test_a_comparer_serves_many_answers() -> None:
    comparer = Comparer()
    assert [comparer.equal(answer, ("4",)) for answer in ("4", "$2+2$", "5", "no number")] == [True, True, False, False]
    comparer.close()
