"""Layouts of data sets, one class for each task.

| task | files |
|---|---|
| retrieval | `corpus.jsonl` {_id, text, title?}, `queries.jsonl` {_id, text}, `qrels/test.tsv` query, document, grade |
| reranking | `test.jsonl` {query, positive: [text], negative: [text]} |
| classification | `train.jsonl`, `test.jsonl` {text, label} |
| clustering | `test.jsonl` {text, label} |
| sts | `test.jsonl` {sentence1, sentence2, score} |
| pair_classification | `test.jsonl` {sentence1, sentence2, label: 0 or 1} |
| pairs | `test.jsonl` {anchor, positive} |
| summarization | `test.jsonl` {text, human_summaries: [text], machine_summaries: [text], relevance: [number]} |

Every JSON-lines file may be compressed as `.jsonl.gz`. Training pairs are made of `train.jsonl` (`qrels/train.tsv`) if
the file exists. Only positives become pairs, as in the REZE paper's Appendix C.1. STS is not in that appendix; here a
high score makes a positive.

| task | anchor | positive | left out |
|---|---|---|---|
| retrieval | query | each relevant document | queries and documents without a relevance judgement |
| reranking | query | each positive | queries without a positive |
| classification | text | the label's description, else its name | |
| clustering | some texts of a cluster, one per line | the cluster's name | |
| sts | first sentence | second sentence | scores below four fifths of the scale |
| pair_classification | first text | second text | pairs not labelled 1 |
| pairs | anchor | positive | |
| summarization | document | each reference summary | rows whose `valid` is false |
"""

from lathe.training.datasets.layout import Layout
from lathe.training.datasets.layouts.classification import Classification, Clustering
from lathe.training.datasets.layouts.retrieval import Pairs, Reranking, Retrieval
from lathe.training.datasets.layouts.sentences import PairClassification, Sts, Summarization, Translations

_ALL: tuple[Layout, ...] = (
    Retrieval(),
    Reranking(),
    Classification(),
    Clustering(),
    Sts(),
    PairClassification(),
    Pairs(),
    Translations(),
    Summarization(),
)
LAYOUTS: dict[str, Layout] = {layout.task: layout for layout in _ALL}
"""Layout of a data set by its task."""
TRAINABLE = tuple(task for task, layout in LAYOUTS.items() if layout.trainable)
"""Tasks whose data sets give training pairs."""
