from pathlib import Path
from typing import Any

import datasets
import pytest

from lmj_trainer.dataset.selection import Selection, select
from lmj_trainer.errors import UserError


def chosen(job: Any, **changes: Any) -> Selection:
    return select(job(**changes).spec, lambda line: None)


def labelled(write: Any, values: list[Any], name: str = "labels.jsonl") -> dict[str, Any]:
    path = write(name, [{"review": f"text {i}", "sentiment": value} for i, value in enumerate(values)])
    return {"dataset__source": str(path)}


def test_names_are_sorted_without_labels_in_the_job(job: Any) -> None:
    selection = chosen(job)
    assert selection.labels.names == ("negative", "positive")
    assert selection.splits["train"].ids.tolist() == [0, 1] * 20


def test_the_jobs_labels_give_the_order(job: Any) -> None:
    assert chosen(job, model__labels=["positive", "negative"]).splits["train"].ids.tolist() == [1, 0] * 20


def test_numbers_are_ids_of_the_jobs_labels(job: Any, write: Any) -> None:
    selection = chosen(job, **labelled(write, [0, 1, 1.0, "0"]), model__labels=["no", "yes"])
    assert selection.splits["train"].ids.tolist() == [0, 1, 1, 0]


def test_names_that_are_digits_are_names_throughout(job: Any, write: Any) -> None:
    ratings = labelled(write, [1, 3, 2])
    assert chosen(job, **ratings, model__labels=["1", "2", "3"]).splits["train"].ids.tolist() == [0, 2, 1]
    with pytest.raises(UserError, match=r"row 2 of .* has label 0, which is not one of 1, 2, 3"):
        chosen(job, **labelled(write, [1, 0]), model__labels=["1", "2", "3"])


def test_numbers_without_labels_in_the_job_are_sorted_as_numbers(job: Any, write: Any) -> None:
    assert chosen(job, **labelled(write, [10, 9, 100])).labels.names == ("9", "10", "100")


def test_the_datasets_own_label_names(job: Any, tmp_path: Path) -> None:
    features = datasets.Features({"review": datasets.Value("string"), "sentiment": datasets.ClassLabel(names=["neg", "pos"])})
    data = datasets.Dataset.from_dict({"review": ["a", "b", "c"], "sentiment": [1, 0, 1]}, features=features)
    data.save_to_disk(str(tmp_path / "saved"))
    saved = {"dataset__source": str(tmp_path / "saved")}
    assert chosen(job, **saved).labels.names == ("neg", "pos")
    assert chosen(job, **saved).splits["train"].ids.tolist() == [1, 0, 1]
    # The same names in another order are matched by name, other names by number.
    assert chosen(job, **saved, model__labels=["pos", "neg"]).splits["train"].ids.tolist() == [0, 1, 0]
    assert chosen(job, **saved, model__labels=["bad", "good"]).splits["train"].ids.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        (
            ["no", "yes", "yess"],
            ["no", "yes"],
            r"^row 3 of .* has label 'yess', which is not one of no, yes; did you mean yes\?$",
        ),
        ([0, 1, 2], ["no", "yes"], r"^row 3 of .* has label 2, which is not one of no, yes, as numbers 0 to 1$"),
        ([0, -1], ["no", "yes"], r"^row 2 of .* has label -1"),
        ([0, "yes"], ["no", "yes"], r"^row 2 of .* has label 'yes'"),
        (["no", None], ["no", "yes"], r"^row 2 of .* has no label"),
        (["no", None], None, r"^row 2 of .* has no label"),
        (["no", ""], None, r"^row 2 of .* has an empty label"),
        ([0.5, 1], None, r"^row 1 of .* has label 0.5: column 'sentiment' of .* holds numbers and no classes"),
        (["3.5", "4", "5"], None, r"^row 1 of .* has label '3.5': column 'sentiment' of .* holds numbers and no classes; name "),
        (["no", " "], None, r"^row 2 of .* has an empty label"),
        (["no", "yes", "nan", "nan"], None, r"^row 3 of .* has label 'nan', which marks a missing value \(2 rows in all\)"),
        ([float("nan"), 1.0], None, r"^row 1 of .* has label 'nan', which marks a missing value"),
        (
            ["refund", "REFUND", "other", "refund ", "refund"],
            None,
            r"writes one label in 3 ways, 'refund' \(2 rows, the first is row 1\), 'REFUND' \(1 rows, the first is row 2\), 'refund '",
        ),
        (["caf\u00e9", "cafe\u0301"], None, "writes one label in 2 ways"),
        (["1", "1.0", "2"], None, "writes one label in 2 ways, '1' .* '1.0'"),
        (
            [7 * i for i in range(60)] * 9,
            None,
            r"holds 60 different numbers, from 0 to 413: a quantity and no classes; name another",
        ),
        ([*range(1001)] * 4, None, "holds 1001 different numbers, from 0 to 1000: a quantity and no classes"),
        ([f"id {i}" for i in range(51)] * 2, None, "holds 51 different values in 102 rows: they are no classes"),
        (["no", "no"], None, r"holds one label only, 'no'"),
    ],
)
def test_a_value_that_is_no_label_is_named_with_its_row(job: Any, write: Any, values: Any, labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        chosen(job, **labelled(write, values), model__labels=labels)


@pytest.mark.parametrize(
    "values",
    [
        [*range(150)] * 4,  # ids of 150 classes
        [f"intent {i}" for i in range(77)] * 4,
        [5 * i for i in range(50)],
        ["1", "2", "3"],
        ["Yes", "No", "NA", "None"],
    ],
)
def test_values_that_can_be_classes_are(job: Any, write: Any, values: Any) -> None:
    assert len(chosen(job, **labelled(write, values)).labels.names) == len(set(values))


def test_the_job_may_name_any_labels(job: Any, write: Any) -> None:
    names = ["refund", "REFUND", "NaN", "0.5"]
    assert chosen(job, **labelled(write, names), model__labels=names).splits["train"].ids.tolist() == [0, 1, 2, 3]


def test_a_label_without_a_training_row_is_a_warning(job: Any, write: Any) -> None:
    said: list[str] = []
    select(job(**labelled(write, ["a", "c"]), model__labels=["a", "b", "c"]).spec, said.append)
    assert said == ["warning: no training row has label 'b': the model never learns it"]


def test_fractions_part_the_rows(job: Any) -> None:
    selection = chosen(job, dataset__splits={"validationFraction": 0.2, "testFraction": 0.1})
    numbers = {name: set(part.rows.numbers.tolist()) for name, part in selection.splits.items()}
    assert {name: len(part) for name, part in numbers.items()} == {"train": 28, "validation": 8, "test": 4}
    assert set.union(*numbers.values()) == set(range(1, 41))


def test_the_seed_decides_which_rows(job: Any) -> None:
    def numbers(seed: int) -> list[int]:
        splits = chosen(
            job, dataset__splits={"validationFraction": 0.2}, dataset__maxSamples={"train": 30}, training__seed=seed
        ).splits
        return splits["train"].rows.numbers.tolist()

    assert numbers(1) == numbers(1)
    assert len(numbers(1)) == 24
    assert numbers(1) != numbers(2)


def test_other_files_and_their_caps(job: Any, write: Any) -> None:
    other = write("test.csv", "review,sentiment\n" + "a,positive\n" * 9)
    splits = chosen(job, dataset__splits={"test": str(other)}, dataset__maxSamples={"test": 5}).splits
    assert len(splits["test"].rows) == 5
    assert splits["test"].ids.tolist() == [1] * 5
    assert len(splits["train"].rows) == 40


def test_labels_of_other_files_are_checked_too(job: Any, write: Any) -> None:
    other = write("test.csv", "review,sentiment\na,positive\nb,neutral\n")
    with pytest.raises(UserError, match=r"row 2 of .*test.csv has label 'neutral'"):
        chosen(job, dataset__splits={"test": str(other)})


def test_a_file_has_no_named_splits(job: Any) -> None:
    with pytest.raises(
        UserError, match=r"dataset.splits.validation: 'dev' is not a file, .* or set dataset.splits.validationFraction"
    ):
        chosen(job, dataset__splits={"validation": "dev"})


def test_fractions_must_leave_a_training_row(job: Any, write: Any) -> None:
    with pytest.raises(UserError, match="2 rows are too few for validation and test fractions"):
        chosen(job, **labelled(write, ["a", "b"]), dataset__splits={"validationFraction": 0.4, "testFraction": 0.4})


def test_a_split_of_which_no_row_has_any_of_several_labels(job: Any, write: Any) -> None:
    several = labelled(write, [["a"], ["b"], []]) | {"model__task": "MultiLabelClassification"}
    held = labelled(write, [[], []], "held.jsonl")["dataset__source"]
    for part in ("validation", "test"):
        with pytest.raises(UserError, match=rf"held.jsonl: no {part} row has a label: .* as dataset.splits.{part}$"):
            chosen(job, **several, dataset__splits={part: held})
    some = labelled(write, [[], ["b"]], "some.jsonl")["dataset__source"]
    found = chosen(job, **several, dataset__splits={"validation": some})
    assert found.splits["validation"].ids.tolist() == [[0, 0], [0, 1]], "a row may have none"
