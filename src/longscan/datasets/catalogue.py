"""The public data sets of the papers and recipes: addresses, checksums, licences and the files that the tasks read.

An address is listed only if a document of the publisher or several public repositories give it. The other sets, among them those
whose known addresses were reported to fail, are downloaded by hand: `RemoteFile.url` is None and `DataSet.page` says where.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a data set.

    Attributes:
        name: path of the file within the folder of its data set; of an archive, the name of the archive.
        url: its address, or None if it must be downloaded by hand.
        checksum: published checksum of the download, "md5:..." or "sha256:...", or None if none is known.
        members: paths in an archive that are unpacked, those of folders with a trailing "/". Leading folders of the archive are
            removed: "Train/" selects a/b/Train/0/1.bin, which becomes Train/0/1.bin. Empty for a file that is no archive.
    """

    name: str
    url: str | None
    checksum: str | None = None
    members: tuple[str, ...] = ()

    @property
    def creates(self) -> tuple[str, ...]:
        """Paths that exist in the folder of the data set once the file is there."""
        return self.members or (self.name,)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A public data set.

    Attributes:
        name: its name on the command line.
        folder: its folder, relative to `LONGSCAN_DATA`.
        files: its files; empty if the user chooses them.
        size: of the download, or of the unpacked files if only that is known.
        licence: of the data, "not stated" if their page states none.
        page: the page that describes the data and how to get them by hand.
        use: options of `longscan train` that read the data, "" if no task does; "{folder}" stands for the folder.
        note: what a user must know before downloading.
        alternatives: patterns, relative to `LONGSCAN_DATA`, of files in another form that the task reads, too.
    """

    name: str
    folder: str
    files: tuple[RemoteFile, ...]
    size: str
    licence: str
    page: str
    use: str
    note: str = ""
    alternatives: tuple[str, ...] = ()

    @property
    def is_by_hand(self) -> bool:
        """Whether the user must download a file of the data set by hand."""
        return not self.files or any(file.url is None for file in self.files)

    @property
    def command(self) -> str:
        """The command that downloads the data set or says how to get it, and which of both it does."""
        does = "says how to get them by hand" if self.is_by_hand else "downloads them"
        return f"`longscan data get {self.name}` {does}"


def _uea(name: str, size: str) -> DataSet:
    """Return a set of the UEA archive, at the address that the package aeon uses; size: of its .ts files."""
    url = f"https://timeseriesclassification.com/aeon-toolkit/{name}.zip"
    members = (f"{name}_TRAIN.ts", f"{name}_TEST.ts")
    return DataSet(
        name=name,
        folder=f"uea/{name}",
        files=(RemoteFile(name=f"{name}.zip", url=url, members=members),),
        size=size,
        licence="not stated",
        page=f"https://www.timeseriesclassification.com/description.php?Dataset={name}",
        use=f"--task uea --task.dataset {name}",
        alternatives=(f"uea/{name}/{name}_TRAIN.arff", f"uea/{name}/{name}Dimension1_TRAIN.arff"),
    )


def _spikes(dataset: str, checksums: dict[str, str]) -> DataSet:
    """Return a data set of the Zenke lab; checksums: MD5 of the archive of each part, as the package tonic has them."""
    files = [
        RemoteFile(
            name=f"{dataset}_{part}.h5.zip",
            url=f"https://zenkelab.org/datasets/{dataset}_{part}.h5.zip",
            checksum=f"md5:{checksum}",
            members=(f"{dataset}_{part}.h5",),
        )
        for part, checksum in checksums.items()
    ]
    return DataSet(
        name=dataset.upper(),
        folder="events",
        files=tuple(files),
        size="unknown",
        licence="CC BY 4.0",
        page="https://zenkelab.org/resources/spiking-heidelberg-datasets-shd/",
        use=f"--task events --task.dataset {dataset}",
    )


def _lra_release(name: str, members: str, use: str, note: str = "") -> DataSet:
    """Return a part of the archive of Long Range Arena."""
    address = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
    return DataSet(
        name=name,
        folder="lra",
        files=(RemoteFile(name="lra_release.gz", url=None, members=(members,)),),
        size="7.7 GB",
        licence="not stated",
        page="https://github.com/google-research/long-range-arena",
        use=use,
        note=f"the published address {address} answered 403 in 2026{note}",
    )


def _encode() -> DataSet:
    """Return two regions of ENCODE in 23 species; the addresses follow the directory structure in the README of `page`."""
    species = [
        "armadillo", "baboon", "chicken", "chimp", "cow", "dog", "elephant", "fugu", "galago", "hedgehog", "human", "macaque",
        "marmoset", "monodelphis", "mouse", "platypus", "rabbit", "rat", "rfbat", "tenrec", "tetraodon", "xenopus", "zebrafish",
    ]  # fmt: skip
    page = "https://hgdownload.cse.ucsc.edu/goldenPath/hg16/encode/alignments/MAY-2005/"
    names = [
        f"{region}/{kind}.{region}.fa"
        for region, absent in (("ENm001", ()), ("ENm002", ("hedgehog", "rfbat")))
        for kind in species
        if kind not in absent
    ]
    return DataSet(
        name="ENCODE",
        folder="dna/encode_MAY-2005",
        files=tuple(RemoteFile(name=name, url=f"{page}sequences/{name}") for name in names),
        size="54 MB",
        licence="not stated",
        page=page,
        use="--task species --data-dir {folder}",
    )


def _all_data_sets() -> Iterator[DataSet]:
    yield from (
        _uea("BasicMotions", "0.5 MB"),
        _uea("JapaneseVowels", "1.1 MB"),
        _uea("UWaveGestureLibrary", "3.4 MB"),
        _uea("FingerMovements", "3.0 MB"),
        _uea("Handwriting", "3.9 MB"),
        _uea("ERing", "0.9 MB"),
        _uea("Heartbeat", "unknown"),
        _uea("SelfRegulationSCP1", "unknown"),
        _uea("SelfRegulationSCP2", "unknown"),
        _uea("EthanolConcentration", "unknown"),
        _uea("MotorImagery", "unknown"),
        _uea("EigenWorms", "unknown"),
    )
    yield DataSet(
        name="CIFAR-10",
        folder="lra",
        files=(
            RemoteFile(
                name="cifar-10-python.tar.gz",
                url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                checksum="md5:c58f30108f718f92721af3b95e74349a",  # as in torchvision
                members=("cifar-10-batches-py/",),
            ),
        ),
        size="170 MB",
        licence="not stated",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        use="--task lra_image",
        alternatives=("lra/test_batch", "lra/CIFAR-10-images", "lra/cifar10", "lra/train/frog"),
    )
    yield DataSet(
        name="aclImdb",
        folder="lra",
        files=(
            RemoteFile(
                name="aclImdb_v1.tar.gz",
                url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                checksum="md5:7c2ac02c03563afcf9b574c7e56c153a",  # as in torchtext
                members=tuple(f"aclImdb/{part}/{kind}/" for part in ("train", "test") for kind in ("pos", "neg")),
            ),
        ),
        size="84 MB",
        licence="not stated",
        page="https://ai.stanford.edu/~amaas/data/sentiment/",
        use="--task lra_text",
    )
    copy = "https://huggingface.co/datasets/OpenNLPLab/lra/resolve/main/data/aan"
    yield DataSet(
        name="AAN",
        folder="lra",
        files=tuple(
            RemoteFile(name=name, url=f"{copy}/{name}")
            for name in ("new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv")
        ),
        size="10.6 GB",
        licence="not stated",
        page="https://huggingface.co/datasets/OpenNLPLab/lra",
        use="--task lra_retrieval",
        # The files and their sizes are listed on the page of the copy.
        note="a copy: the address of Long Range Arena's own lra_release.gz answered 403 in 2026",
    )
    yield _lra_release("ListOps", "listops-1000/", "", "; the task listops generates its examples and does not read the files")
    folder = "pathfinder32/curv_contour_length_14/"
    yield _lra_release("Pathfinder", folder, f"--task pathfinder --data-dir {{folder}}/{folder.rstrip('/')}")
    yield _spikes("shd", {"train": "f3252aeb598ac776c1b526422d90eecb", "test": "1503a5064faa34311c398fb0a1ed0a6f"})
    yield _spikes(
        "ssc",
        {
            "train": "d102be95e7144fcc0553d1f45ba94170",
            "valid": "b4eee3516a4a90dd0c71a6ac23a8ae43",
            "test": "a35ff1e9cffdd02a20eb850c17c37748",
        },
    )
    yield DataSet(
        name="DVSGesture",
        folder="events/DVSGesture",
        files=(
            RemoteFile(
                name="ibmGestureTrain.tar.gz",
                url=None,
                checksum="md5:3a8f0d4120a166bac7591f77409cb105",  # as in tonic
                members=("ibmGestureTrain/",),
            ),
            RemoteFile(
                name="ibmGestureTest.tar.gz",
                url=None,
                checksum="md5:56070e45dadaa85fff82e0fbfbc06de5",
                members=("ibmGestureTest/",),
            ),
        ),
        size="1.6 GB",
        licence="CC BY 4.0",
        page="https://figshare.com/ndownloader/files/38022171 (train) and https://figshare.com/ndownloader/files/38020584 (test)",
        use="--task events --task.dataset dvs_gesture",
        note="figshare answers only browsers; IBM's recordings, which the task reads as well, are at "
        "https://research.ibm.com/interactive/dvsgesture/",
        alternatives=("events/ibmGestureTrain", "events/trials_to_train.txt", "events/**/DvsGesture/trials_to_train.txt"),
    )
    yield DataSet(
        name="N-MNIST",
        folder="events/NMNIST",
        files=(
            RemoteFile(name="Train.zip", url=None, checksum="md5:20959b8e626244a1b502305a9e6e2031", members=("Train/",)),
            RemoteFile(name="Test.zip", url=None, checksum="md5:69ca8762b2fe404d9b9bad1103e97832", members=("Test/",)),
        ),
        size="unknown",
        licence="see its page",
        page="https://data.mendeley.com/datasets/468j46mzdv/1",
        use="--task events --task.dataset nmnist",
        note="the direct addresses of the files answered 404 in 2026",
        alternatives=("events/Train/0", "events/**/NMNISTsmall/train1K.txt"),
    )
    yield DataSet(
        name="walker",
        folder="activity",
        files=(
            # The address of the author's later repositories; the two in the history of ode-lstms are older.
            RemoteFile(name="walker.zip", url="https://people.csail.mit.edu/mlechner/datasets/walker.zip", members=("walker/",)),
        ),
        size="35 MB",
        licence="MIT (repository)",
        page="https://github.com/mlech26l/ode-lstms",
        use="--task walker",
        alternatives=("activity/**/rollout_000.npy",),
    )
    yield DataSet(
        name="ConfLongDemo_JSI",
        folder="activity",
        files=(
            RemoteFile(
                name="localization+data+for+person+activity.zip",
                # Address and checksum: public repositories that read the set; the page has a button only.
                url="https://archive.ics.uci.edu/static/public/196/localization+data+for+person+activity.zip",
                checksum="sha256:6660124b4d1fd98963c56a6804bbb0ca0c5ee12edc9b772c8a867148af20d0da",
                members=("ConfLongDemo_JSI.txt",),
            ),
        ),
        size="unknown",
        licence="CC BY 4.0",
        page="https://archive.ics.uci.edu/dataset/196",
        use="--task human_activity",
    )
    yield DataSet(
        name="WTH",
        folder="forecasting",
        files=(RemoteFile(name="WTH.csv", url=None),),
        size="2.1 MB",
        licence="Apache-2.0 (repository)",
        page="https://drive.google.com/drive/folders/1ohGYWWohJlOlb2gsGTeEq3Wii2egnEPR",
        use="--task forecast --task.dataset WTH",
        note="Google Drive has no lasting address of the file; the folder is that of github.com/zhouhaoyi/Informer2020",
    )
    yield DataSet(
        name="ETTh1",
        folder="forecasting",
        files=(
            RemoteFile(
                name="ETTh1.csv",
                url="https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/ETTh1.csv",
                checksum="md5:8381763947c85f4be6ac456c508460d6",
            ),
        ),
        size="2.6 MB",
        licence="CC BY-ND 4.0",
        page="https://github.com/zhouhaoyi/ETDataset",
        use="--task forecast --task.dataset ETTh1",
    )
    yield DataSet(
        name="weather",
        folder="forecasting",
        files=(
            RemoteFile(
                name="weather.csv",
                url="https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/weather/weather.csv",
            ),
        ),
        size="7.2 MB",
        licence="CC BY 4.0",
        page="https://huggingface.co/datasets/thuml/Time-Series-Library",
        use="--task forecast --task.dataset weather",
    )
    yield _encode()
    yield DataSet(
        name="genomes",
        folder="dna",
        files=(),
        size="unknown",
        licence="see its page",
        page="https://www.ncbi.nlm.nih.gov/datasets/genome/",
        use="--task species --data-dir {folder}",
        note="choose at least two species and put their chromosomes into SPECIES/*.fa, unpacked",
        alternatives=("dna/*/chr*.fa", "dna/*/chr*.fna", "dna/*/chr*.fasta"),
    )
    yield DataSet(
        name="tinyshakespeare",
        folder="text/tinyshakespeare",
        files=(
            RemoteFile(
                name="input.txt", url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
            ),
        ),
        size="1.1 MB",
        licence="not stated",
        page="https://github.com/karpathy/char-rnn",
        use="--task byte_text --task.path {folder}/input.txt",
    )
    yield DataSet(
        name="wikitext-2",
        folder="text",
        files=(
            # The author's mirror; the first address, on Amazon S3, is reported to be gone.
            RemoteFile(
                name="wikitext-2-v1.zip",
                url="https://wikitext.smerity.com/wikitext-2-v1.zip",
                members=tuple(f"wikitext-2/wiki.{part}.tokens" for part in ("train", "valid", "test")),
            ),
        ),
        size="12 MB",
        licence="CC BY-SA",
        page="https://wikitext.smerity.com",
        use="--task byte_text --task.path {folder}/wikitext-2/wiki.train.tokens",
    )


DATA_SETS = {one.name: one for one in _all_data_sets()}


def find_data_set(name: str) -> DataSet:
    """Return the data set of a name in any case. Raises ValueError naming the nearest names if there is none."""
    by_name = {known.lower(): known for known in DATA_SETS}
    if name.lower() in by_name:
        return DATA_SETS[by_name[name.lower()]]
    near = [by_name[one] for one in get_close_matches(name.lower(), by_name, 3, 0.5)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"`name` must be a data set of `longscan data list`, got {name!r}{hint}")
