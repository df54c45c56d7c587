"""Every row of the policy describes itself."""

from gnvpro.policy import Policy, rows_of


def test_every_row_names_its_unit_its_decision_and_its_measurement():
    rows = list(rows_of(Policy()))
    assert rows
    assert all(row.subject and row.name and row.unit and row.decides and row.measured_by for row in rows)


def test_there_are_at_most_seventy_rows():
    assert len(list(rows_of(Policy()))) <= 70
