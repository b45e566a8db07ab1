import pytest
import yaml

from depthroute import config
from depthroute.errors import ConfigError

TINY = "model: {size: tiny, residual: {preset: rd, blocks: 4}}\n"


def plain(**keys):
    return config.from_dict({"model": {"size": "tiny", "residual": "rd"}, **keys})


def written(path, text):
    path.write_text(text)
    return path


def test_a_model_alone_is_a_complete_small_run():
    run = plain()
    assert run.steps * run.tokens_per_step >= run.tokens > (run.steps - 1) * run.tokens_per_step


def test_a_configuration_survives_yaml_with_its_digest(tmp_path):
    first = config.load(written(tmp_path / "a.yaml", TINY), ["seed=3", "optimizer.eps=1e-6", "data.tokenizer=byte"])
    again = config.load(written(tmp_path / "b.yaml", config.dump(first)))
    assert again == first
    assert config.digest(again) == config.digest(first)
    assert config.first_difference(first, again) is None


def test_the_digest_ignores_the_order_of_keys_and_sees_every_value():
    a = plain(seed=1, batch=4)
    assert config.digest(a) == config.digest(plain(batch=4, seed=1))
    assert config.digest(a) != config.digest(plain(batch=4, seed=2))


def test_shorthands_are_stored_as_what_they_stand_for(tmp_path):
    stored = yaml.safe_load(config.dump(config.load(written(tmp_path / "a.yaml", TINY))))
    assert "size" not in stored["model"]
    assert stored["model"]["residual"]["routes"] == "qk_v"


def test_a_setting_is_parsed_as_yaml_and_wins_over_the_file(tmp_path):
    path = written(tmp_path / "a.yaml", TINY + "batch: 4\n")
    sets = ["batch=2", "evaluation.milestones=[0, 1000]", "model.width=64", "optimizer.queries=1e-4", "clip=null"]
    run = config.load(path, sets)
    assert (run.batch, run.evaluation.milestones, run.model.width) == (2, (0, 1000), 64)
    assert (run.optimizer.queries, run.clip) == (1e-4, None)


def test_the_learning_rate_of_matrices_follows_the_method_unless_it_is_given():
    def rate(**matrices):
        return plain(optimizer={"matrices": matrices}).optimizer.matrices.learning_rate

    assert rate() == rate(method="muon") == 0.02
    assert rate(method="adamw") == 0.003
    assert rate(method="adamw", learning_rate=0.5) == 0.5


def test_the_first_difference_is_a_dotted_key_with_both_values():
    a, b = plain(), plain(optimizer={"matrices": {"momentum": 0.5}}, seed=9)
    key = config.first_difference(a, b)
    assert key == "optimizer.matrices.momentum"
    assert (config.value_at(a, key), config.value_at(b, key)) == (0.95, 0.5)


def test_a_key_that_one_side_lacks_is_a_difference():
    a = config.from_dict({"model": {"size": "tiny", "residual": "prenorm"}})
    b = config.from_dict({"model": {"size": "tiny", "residual": "rd"}})
    assert config.first_difference(a, b) == "model.residual.name"
    assert config.value_at(a, "model.residual.routes") == "absent"


@pytest.mark.parametrize(
    ("text", "sets", "message"),
    [
        ("batchs: 3\n", [], "batchs: unknown key (did you mean 'batch'?"),
        ("", ["optimizer.matrices.methd=muon"], "optimizer.matrices.methd: unknown key (did you mean 'method'?"),
        ("", ["model.widht=3"], "model.widht: unknown key (did you mean 'width'?"),
        ("", ["schedule.warm=3"], "schedule.warm: unknown key (did you mean 'warmup'?"),
        ("seed: 1\nbatch: 2\nseed: 3\n", [], "line 4: key 'seed' is given twice"),
        ("seed: 1\n  batch: [\n", [], "line 3: mapping values are not allowed"),
        ("model: {size: tiny}\n", [], "model.residual: missing"),
        ("- 1\n", [], "must be a mapping"),
        ("batch: 4\naccumulation: 3\n", [], "accumulation 3 does not divide batch 4"),
        ("tokens: 1024\n", [], "schedule.warmup 20 leaves none of the 1 steps"),
        ("evaluation: {milestones: [9000000]}\n", [], "evaluation.milestones reach 9000000, tokens 1000000"),
        ("evaluation: {tokens: 127}\n", [], "evaluation.tokens 127 is less than one window of length 128"),
        ("evaluation: {milestones: [5, 5]}\n", [], "evaluation: milestones must rise"),
        ("evaluation: {milestones: [5], every: 5}\n", [], "evaluation: give milestones or every, not both"),
        ("optimizer: {betas: [0.9, 1.0]}\n", [], "optimizer.betas.1: Input should be less than 1"),
        ("clip: .inf\n", [], "clip: Input should be a finite number"),
        ("", ["seed"], "--set seed: write it as key.key=value"),
        ("", ["seed.=1"], "--set seed.=1: write it as key.key=value"),
        ("seed: 1\n", ["seed.x=1"], "--set seed.x=1: seed is 1, which has no key x"),
        ("", ["seed=[1"], "--set seed=[1: line 1:"),
    ],
)
def test_a_wrong_configuration_is_one_line_that_names_the_key(tmp_path, text, sets, message):
    path = written(tmp_path / "run.yaml", text if text.startswith(("- ", "model:")) else TINY + text)
    with pytest.raises(ConfigError) as error:
        config.load(path, sets)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml: not UTF-8"):
        config.load(tmp_path / "binary.yaml")


def test_yaml_cannot_build_python_objects(tmp_path):
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        config.load(written(tmp_path / "run.yaml", "seed: !!python/object/apply:os.getpid []\n"))


def test_numbers_in_exponent_notation_are_numbers():
    assert config.parse_yaml("[1e-3, 2E6, -1.e2, 3.5e+1, 1e, e3]", "here") == [1e-3, 2e6, -100.0, 35.0, "1e", "e3"]
    assert plain(tokens=1e6).tokens == 1_000_000


@pytest.mark.parametrize("key", ["tokens", "threads", "clip", "seed", "model.layers", "optimizer.queries"])
def test_a_truth_value_is_no_number(key, tmp_path):
    path = written(tmp_path / "run.yaml", TINY)
    with pytest.raises(ConfigError, match="give a number, not True"):
        config.load(path, [f"{key}=yes"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("? [a, b]\n: 3\n", "a key must be a word"),
        ("{? {a: b} : 2}\n", "a key must be a word"),
        ("a: 2020-99-99\n", "not YAML that can be read"),
        ("a: !!int foo\n", "not YAML that can be read"),
        ("a: !!timestamp foo\n", "not YAML that can be read"),
        ("model: tiny\n", "model: give a mapping of keys to values, not 'tiny'"),
        (TINY + "schedule:\n", "schedule: give a mapping of keys to values, not None"),
        (TINY + "tokens: '32'\n", "tokens: give a number, not '32'"),
        (TINY + "seed: 99999999999999999999\n", "seed: 99999999999999999999 is out of range"),
        (TINY + "threads: 100000\n", "threads: "),
        (TINY.replace("tiny", "tiny, width: '32'"), "width: give a number, not '32'"),
        (TINY.replace("tiny", "[tiny]"), "size '['tiny']' does not exist"),
        (TINY.replace("blocks: 4", "bloks: 4"), "bloks: unknown key beside a preset (did you mean 'blocks'"),
        (TINY.replace("rd", ""), "preset 'None' does not exist"),
        (TINY + "track: tensorboard\n", "track: give a list, in brackets and with commas, not 'tensorboard'"),
        (TINY + "arms: {}\nseeds: []\n", "describes a study; use depthroute study run"),
    ],
)  # fmt: skip
def test_what_a_hasty_hand_writes_is_one_line(text, message, tmp_path):
    with pytest.raises(ConfigError) as error:
        config.load(written(tmp_path / "run.yaml", text))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
