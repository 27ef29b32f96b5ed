// Settings: every way to write them wrong is named with its place; what is right round-trips to the same bits.
#include "src/core/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "src/core/config_schema.h"

namespace xce {
namespace {

const std::string kBase =
    "run:\n"
    "  dir: runs/demo\n"
    "model:\n"
    "  hidden_size: 128\n"
    "  intermediate_size: 384\n"
    "  num_hidden_layers: 3\n"
    "  num_attention_heads: 4\n"
    "data:\n"
    "  train: bible.txt\n"
    "  val_fraction: 0.1\n"
    "train:\n"
    "  steps: 1500\n"
    "  seq_len: 64\n";  // 13 lines: what a test appends begins in line 14

// The message of the kUsage error that parsing gives.
std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(text, "c.yaml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "accepted";
}
std::string error_after_base(const std::string& more) {
  return error_of(kBase + more);
}
std::string override_error(const std::string& word) {
  return error_of(kBase, {word});
}

TEST(ConfigTest, DefaultsDerivedAndGivenValues) {
  Config config = parse_config(kBase + "optim: {lr: 4e-3}\n", "c.yaml", {"train.micro_batch=16"});
  EXPECT_EQ(config.run.dir, "runs/demo");
  EXPECT_EQ(config.model.hidden_size, 128);
  EXPECT_EQ(config.model.vocab_size, 256);
  EXPECT_EQ(config.model.num_key_value_heads, 4);
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.model.max_position_embeddings, 64);
  EXPECT_FALSE(config.model.has_rope_scaling);
  EXPECT_EQ(config.train.global_batch, 16);
  EXPECT_EQ(config.train.precision, DType::kF32);
  EXPECT_EQ(config.optim.lr, 4e-3);
  EXPECT_EQ(config.data.val_fraction, 0.1);
  EXPECT_EQ(config.run.resume, ResumeMode::kAuto);
  EXPECT_TRUE(config.was_given("optim.lr"));
  EXPECT_TRUE(config.was_given("train.micro_batch"));
  EXPECT_FALSE(config.was_given("train.global_batch"));
  EXPECT_FALSE(config.was_given("optim.beta1"));
}

TEST(ConfigTest, EveryEnumerationAndNestedSection) {
  Config config = parse_config(
      kBase +
          "  precision: bf16\n  recompute: block\nschedule:\n  kind: wsd\n  decay_steps: 100\n"
          "log:\n  tensorboard: false\n",
      "c.yaml", {"model.rope_scaling.rope_type=llama3", "model.rope_scaling.factor=32", "run.resume=must"});
  EXPECT_EQ(config.train.precision, DType::kBf16);
  EXPECT_EQ(config.train.recompute, RecomputeMode::kBlock);
  EXPECT_EQ(config.schedule.kind, ScheduleKind::kWsd);
  EXPECT_EQ(config.schedule.decay_steps, 100);
  EXPECT_FALSE(config.log.tensorboard);
  EXPECT_TRUE(config.model.has_rope_scaling);
  EXPECT_EQ(config.model.rope_scaling.factor, 32);
  EXPECT_EQ(config.run.resume, ResumeMode::kMust);
}

TEST(ConfigTest, WaysToWriteANumber) {
  for (const char* text : {"1e-4", "1E-4", "\"1e-4\"", "'1e-4'", "0.0001", "+1e-4", "1.0e-04", ".0001"}) {
    EXPECT_EQ(parse_config(kBase + "optim:\n  lr: " + text + "\n", "c.yaml").optim.lr, 1e-4) << text;
  }
  EXPECT_EQ(parse_config(kBase + "optim:\n  lr: 1\n", "c.yaml").optim.lr, 1.0);
  EXPECT_EQ(parse_config(kBase, "c.yaml", {"optim.lr=1E-4"}).optim.lr, 1e-4);
  EXPECT_EQ(parse_config(kBase + "log:\n  every: \"5\"\n", "c.yaml").log.every, 5);
}

TEST(ConfigTest, MalformedNumbers) {
  for (const char* text : {"0.1x", "nan", ".nan", "inf", ".inf", "-1", "-1e-9", "1e999", "abc", "0x10", "1,5", "\"\"",
                           "1_0", "\" 1\"", "true", "+-1", "--1", "1e", "1 2"}) {
    std::string shown = text[0] == '"' ? std::string(text + 1, std::string(text).size() - 2) : text;
    EXPECT_EQ(error_after_base("optim:\n  lr: " + std::string(text) + "\n"),
              "c.yaml:15:7: optim.lr: expected a number >= 0, got '" + shown + "'");
  }
  for (const char* text : {"1.5", "1e3", "5x", "0", "-3", "nan", "99999999999999999999", "2000000000000000", "true"}) {
    EXPECT_EQ(error_after_base("log:\n  every:   " + std::string(text) + "  # comment\n"),
              "c.yaml:15:12: log.every: expected a whole number >= 1 and <= 1e15, got '" + std::string(text) + "'");
  }
  EXPECT_EQ(error_after_base("optim: {beta1: 1}\n"),
            "c.yaml:14:16: optim.beta1: expected a number >= 0 and < 1, got '1'");
  EXPECT_EQ(error_after_base("optim: {eps: 0}\n"), "c.yaml:14:14: optim.eps: expected a number >= 1e-30, got '0'");
}

TEST(ConfigTest, BooleansAreTrueOrFalseOnly) {
  EXPECT_TRUE(parse_config(kBase, "c.yaml", {"model.tie_word_embeddings=true"}).model.tie_word_embeddings);
  for (const char* text : {"yes", "no", "on", "off", "True", "FALSE", "1", "0", "y"}) {
    EXPECT_EQ(error_after_base("log:\n  tensorboard: " + std::string(text) + "\n"),
              "c.yaml:15:16: log.tensorboard: expected true or false, got '" + std::string(text) + "'");
  }
}

TEST(ConfigTest, UnknownNames) {
  EXPECT_EQ(error_of("model:\n  hiden_size: 5\n"),
            "c.yaml:2:3: unknown key 'model.hiden_size'; did you mean 'hidden_size'?");
  EXPECT_EQ(error_of("model: {vocab-size: 5}\n"),
            "c.yaml:1:9: unknown key 'model.vocab-size'; did you mean 'vocab_size'?");
  EXPECT_EQ(error_of("mdoel:\n  hidden_size: 5\n"), "c.yaml:1:1: unknown section 'mdoel'; did you mean 'model'?");
  EXPECT_EQ(error_of("train:\n  steps: 5\n  lr: 1\n"), "c.yaml:3:3: unknown key 'train.lr'; did you mean 'optim.lr'?");
  EXPECT_EQ(error_of("seq_len: 5\n"), "c.yaml:1:1: unknown section 'seq_len'; did you mean 'train.seq_len'?");
  EXPECT_EQ(error_of("log:\n  zzzzzz: 5\n"), "c.yaml:2:3: unknown key 'log.zzzzzz'; known here: every, tensorboard");
  EXPECT_EQ(error_of("model:\n  rope_scaling:\n    type: llama3\n"),
            "c.yaml:3:5: unknown key 'model.rope_scaling.type'; known here: rope_type, factor, low_freq_factor, "
            "high_freq_factor, original_max_position_embeddings");
  EXPECT_EQ(
      error_after_base("schedule:\n  kind: cosin\n"),
      "c.yaml:15:9: schedule.kind: expected one of constant, linear, cosine, wsd, got 'cosin'; did you mean 'cosine'?");
  EXPECT_EQ(error_after_base("schedule:\n  kind: step\n"),
            "c.yaml:15:9: schedule.kind: expected one of constant, linear, cosine, wsd, got 'step'");
}

TEST(ConfigTest, DuplicateKeys) {
  EXPECT_EQ(error_of("optim:\n  lr: 1\n  beta1: 0.5\n  lr: 2\n"),
            "c.yaml:4:3: duplicate key 'lr', first given in line 2");
  EXPECT_EQ(error_of("optim: {lr: 1, lr: 1}\n"), "c.yaml:1:16: duplicate key 'lr', first given in line 1");
  EXPECT_EQ(error_of("optim:\n  lr: 1\nrun:\n  seed: 1\noptim:\n  eps: 1\n"),
            "c.yaml:5:1: duplicate key 'optim', first given in line 1");
  EXPECT_EQ(error_of("optim:\n  lr: 1\n  \"lr\": 2\n"), "c.yaml:3:3: duplicate key 'lr', first given in line 2");
}

TEST(ConfigTest, NullValuesAndWrongNodeKinds) {
  EXPECT_EQ(error_of("optim:\n  beta1: 0.5\n  lr:\n  eps: 1\n"),
            "c.yaml:3:3: optim.lr: no value; give one (number >= 0) or leave the key out");
  EXPECT_EQ(error_of("optim:\n  lr: ~\n"),
            "c.yaml:2:3: optim.lr: no value; give one (number >= 0) or leave the key out");
  EXPECT_EQ(error_of("run:\n  dir: null\n"), "c.yaml:2:3: run.dir: no value; give one (text) or leave the key out");
  EXPECT_EQ(error_of("run:\n  seed: 1\noptim:\n"),
            "c.yaml:3:1: section 'optim' is empty; give it keys or leave it out");
  EXPECT_EQ(error_of("optim: 5\n"), "c.yaml:1:8: optim: expected a section with keys below it, got '5'");
  EXPECT_EQ(error_of("optim:\n  - lr\n"), "c.yaml:2:3: optim: expected a section with keys below it, got a list");
  EXPECT_EQ(error_of("optim:\n  lr: [1, 2]\n"), "c.yaml:2:7: optim.lr: expected one value (number >= 0), got a list");
  EXPECT_EQ(error_of("optim:\n  lr: {a: 1}\n"),
            "c.yaml:2:7: optim.lr: expected one value (number >= 0), got a section");
  EXPECT_EQ(error_of("optim:\n  lr:\n    a: 1\n"),
            "c.yaml:3:5: optim.lr: expected one value (number >= 0), got a section");
  EXPECT_EQ(error_of("- a\n"), "c.yaml:1:1: expected sections such as 'model:' or 'train:', got a list");
  EXPECT_EQ(error_of("\n  hello\n"), "c.yaml:2:3: expected sections such as 'model:' or 'train:', got a single value");
  EXPECT_EQ(error_of("? [a]\n: b\n"), "c.yaml:1:3: a key must be a plain name");
}

TEST(ConfigTest, YamlBeyondSettings) {
  EXPECT_EQ(error_of("run: &a {seed: 1}\n"), "c.yaml:1:6: anchors ('&name') are not supported");
  EXPECT_EQ(error_of("run: {seed: !!int 1}\n"), "c.yaml:1:13: tags ('tag:yaml.org,2002:int') are not supported");
  EXPECT_EQ(error_of("run: {seed: 1}\n---\nrun: {seed: 2}\n"),
            "c.yaml:3:1: expected one YAML document, here begins another");
}

TEST(ConfigTest, SyntaxErrors) {
  EXPECT_EQ(error_of("run: [1, 2\n").substr(0, 11), "c.yaml:2:1:");
  EXPECT_EQ(error_of("run:\n  seed: 1\n  dir: 'abc\n"), "c.yaml:3:8: the closing ' is missing");
  EXPECT_EQ(error_of("run:\n  dir: \"abc\\\"").substr(0, 9), "c.yaml:2:");
  EXPECT_EQ(error_of("run: {\"dir").substr(0, 9), "c.yaml:1:");
  EXPECT_EQ(error_of("run:\n\tdir: abc\n").substr(0, 9), "c.yaml:2:");
  EXPECT_EQ(error_of("run:\n  dir: a\n seed: 1\n").substr(0, 18), "c.yaml:3:2: YAML: ");
  EXPECT_EQ(error_of("run: {seed: 1}\n]\n").substr(0, 18), "c.yaml:2:1: YAML: ");
  EXPECT_EQ(error_of("run: " + std::string(100000, '[')).substr(0, 9), "c.yaml:1:");
  EXPECT_EQ(error_of("run: " + std::string(100000, '{')).substr(0, 9), "c.yaml:1:");
  EXPECT_EQ(error_of("run:\n  dir: a\xFF\n"), "c.yaml:2:9: not UTF-8 text");
  EXPECT_EQ(error_of(std::string("run:\n  dir: a\0b\n", 16)), "c.yaml:2:9: a zero byte: not a text file");
  EXPECT_EQ(error_of("run:\n  dir: \"a\\tb\"\n"),
            "c.yaml:2:8: run.dir: expected one line of text without control characters");
}

TEST(ConfigTest, EmptyFileLacksWhatIsRequired) {
  for (const char* text : {"", "# nothing\n", "---\n", "\xEF\xBB\xBF"})
    EXPECT_EQ(error_of(text), "c.yaml: run.dir: missing");
}

TEST(ConfigTest, ByteOrderMarkAndLineEnds) {
  std::string crlf;
  for (char c : kBase + "optim:\n  lr: 4e-3\n") crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  Config config = parse_config("\xEF\xBB\xBF" + crlf, "c.yaml");
  EXPECT_EQ(config.run.dir, "runs/demo");
  EXPECT_EQ(config.optim.lr, 4e-3);
  EXPECT_EQ(error_of("\xEF\xBB\xBFrun:\r\n  dir: a\r\n  sed: 1\r\n"),
            "c.yaml:3:3: unknown key 'run.sed'; did you mean 'seed'?");
}

TEST(ConfigTest, Overrides) {
  Config config = parse_config(kBase, "c.yaml", {"run.dir=a=b #c", "train.steps=5", "train.steps=6"});
  EXPECT_EQ(config.run.dir, "a=b #c");
  EXPECT_EQ(config.train.steps, 6);
  EXPECT_EQ(override_error("train.stps=5"),
            "command line 'train.stps=5': unknown key 'train.stps'; did you mean 'train.steps'?");
  EXPECT_EQ(override_error("steps=5"), "command line 'steps=5': unknown section 'steps'; did you mean 'train.steps'?");
  EXPECT_EQ(override_error("trian.steps=5"),
            "command line 'trian.steps=5': unknown key 'trian.steps'; did you mean 'train.steps'?");
  EXPECT_EQ(override_error("train=5"), "command line 'train=5': 'train' is a section; write train.key=value");
  EXPECT_EQ(override_error("train.steps"), "command line 'train.steps': expected section.key=value");
  EXPECT_EQ(override_error("=5"), "command line '=5': expected section.key=value");
  EXPECT_EQ(override_error("optim.lr="), "command line 'optim.lr=': optim.lr: expected a number >= 0, got ''");
  EXPECT_EQ(override_error("optim.lr=nan"), "command line 'optim.lr=nan': optim.lr: expected a number >= 0, got 'nan'");
  EXPECT_EQ(override_error("run.dir=\xFF"), "command line 'run.dir=\xFF': run.dir: expected UTF-8 text");
}

TEST(ConfigTest, ChecksAcrossKeysNameThePlaceThatWasGiven) {
  struct Case {
    std::vector<std::string> words;
    const char* message;
  };
  const std::string word = "command line '";
  for (const Case& c : std::vector<Case>{
           {{"run.dir="}, "run.dir: expected a value, got ''"},
           {{"train.steps=0"}, "train.steps: expected a value, got '0'"},
           {{"model.num_attention_heads=3"},
            "model.num_attention_heads: model.hidden_size 128 is not a multiple of 3; give model.head_dim if that is "
            "meant"},
           {{"model.num_key_value_heads=3"},
            "model.num_key_value_heads: model.num_attention_heads 4 is not a multiple of 3"},
           {{"model.head_dim=31"}, "model.head_dim: expected an even width for rotary pairs, got 31"},
           {{"model.vocab_size=300"}, "model.vocab_size: data.kind bytes has 256 tokens, got 300"},
           {{"data.kind=markov", "data.train=", "data.val_fraction=0", "model.vocab_size=7"},
            "model.vocab_size: expected data.markov_states 64, got 7"},
           {{"data.kind=markov"}, "data.train: data.kind markov reads no file"},
           {{"data.train="}, "data.train: missing; name the file to learn from"},
           {{"data.val=v.txt"}, "data.val_fraction: give either data.val or data.val_fraction"},
           {{"data.val_fraction=0", "eval.every=5"},
            "eval.every: nothing to validate on; give data.val or data.val_fraction"},
           {{"train.micro_batch=4", "train.global_batch=2"}, "train.global_batch: 2 is less than train.micro_batch 4"},
           {{"schedule.min_lr=0.1"}, "schedule.min_lr: 0.1 is more than optim.lr 0.001"},
           {{"schedule.decay_steps=5"}, "schedule.decay_steps: only schedule.kind wsd has it"},
           {{"schedule.kind=wsd"}, "schedule.decay_steps: missing; schedule.kind wsd needs it"},
           {{"schedule.kind=wsd", "schedule.decay_steps=1501"},
            "schedule.decay_steps: 1501 is more than train.steps 1500"},
           {{"model.rope_scaling.rope_type=llama3", "model.rope_scaling.low_freq_factor=4"},
            "model.rope_scaling.low_freq_factor: expected less than high_freq_factor 4, got 4"},
           {{"model.max_position_embeddings=63"}, "train.seq_len: 64 is more than model.max_position_embeddings 63"},
           {{"parallel.shard=full"}, "parallel.shard: full is not supported by this version"},
           {{"parallel.head=vocab"}, "parallel.head: vocab is not supported by this version"},
           {{"loss.softcap=30"}, "loss.softcap: 30 is not supported by this version"},
       }) {
    std::string key = std::string(c.message).substr(0, std::string(c.message).find(':'));
    std::string where;
    for (const std::string& w : c.words) {
      if (w.starts_with(key + "=")) where = word + w + "': ";
    }
    if (where.empty())
      where = key == "train.seq_len" ? "c.yaml:13:12: " : key == "data.train" ? "c.yaml:9:10: " : "c.yaml: ";
    if (key == "data.val_fraction") where = "c.yaml:10:17: ";
    EXPECT_EQ(error_of(kBase, c.words), where + c.message);
  }
  EXPECT_EQ(error_of("run: {dir: a}\n"), "c.yaml: model.hidden_size: missing");
}

TEST(ConfigTest, GeneratedDataNeedsNoFile) {
  std::vector<std::string> words = {"data.kind=markov", "data.train="};
  EXPECT_EQ(parse_config(kBase, "c.yaml", words).model.vocab_size, 64);
  words[0] = "data.kind=synthetic";
  EXPECT_EQ(error_of(kBase, words), "c.yaml: model.vocab_size: missing; data.kind synthetic needs it");
  words.push_back("model.vocab_size=1000");
  EXPECT_EQ(parse_config(kBase, "c.yaml", words).model.vocab_size, 1000);
}

TEST(ConfigTest, SyntheticDataOverridesAConfigThatReadsFilesAndValidates) {
  Config config = parse_config(kBase, "c.yaml", {"data.kind=synthetic", "model.vocab_size=1000", "eval.every=5"});
  EXPECT_EQ(config.data.train, "");
  EXPECT_EQ(config.data.val_fraction, 0);
  EXPECT_EQ(config.eval.every, 0);
}

TEST(ConfigTest, ShapeFromADirectoryIsCheckedOnceItIsKnown) {
  std::string text =
      "run: {dir: r}\nmodel: {init_from: hf}\ndata: {train: t, kind: tokens}\ntrain: {steps: 1, seq_len: 8}\n";
  Config config = parse_config(text, "c.yaml");
  EXPECT_EQ(config.model.hidden_size, 0);
  EXPECT_EQ(config.model.head_dim, 0);
  config.model.num_attention_heads = 4;
  config.model.num_key_value_heads = 3;
  EXPECT_THROW(finish_config(config), Error);
  config.model.num_key_value_heads = 2;
  EXPECT_NO_THROW(finish_config(config));
}

std::string printed_values(const Config& config) {
  return config_to_yaml(config, false);
}

TEST(ConfigTest, PrintedConfigReadsBackToTheSameValues) {
  Config config =
      parse_config(kBase, "c.yaml",
                   {"run.dir=C:\\a \"b\" # 'c': \xC3\xA9 {x}", "optim.lr=0.1234567890123456789", "optim.eps=1e-30",
                    "schedule.min_lr=5e-324", "run.seed=123456789012345", "model.rope_scaling.rope_type=llama3",
                    "train.precision=fp64", "log.tensorboard=false"});
  for (bool with_origins : {false, true}) {
    Config again = parse_config(config_to_yaml(config, with_origins), "resolved.yaml");
    EXPECT_EQ(printed_values(again), printed_values(config));
    EXPECT_EQ(again.run.dir, config.run.dir);
    EXPECT_EQ(again.optim.lr, 0.1234567890123456789);
    EXPECT_EQ(again.schedule.min_lr, std::numeric_limits<double>::denorm_min());
    EXPECT_EQ(again.run.seed, 123456789012345);
    EXPECT_EQ(again.train.precision, DType::kF64);
    EXPECT_TRUE(again.model.has_rope_scaling);
    EXPECT_TRUE(changed_keys(config, again).fatal.empty());
    EXPECT_TRUE(changed_keys(config, again).listed.empty());
  }
}

TEST(ConfigTest, PrintedConfigNamesTheOrigins) {
  std::string yaml = config_to_yaml(parse_config(kBase, "c.yaml", {"optim.lr=1E-4"}), true);
  auto has = [&](const std::string& line) { return ("\n" + yaml).find("\n" + line + "\n") != std::string::npos; };
  auto padded = [](std::string text, const std::string& note) {
    return text + std::string(44 - text.size(), ' ') + "# " + note;
  };
  EXPECT_TRUE(has("optim:")) << yaml;
  EXPECT_TRUE(has(padded("  lr: 1e-4", "command line"))) << yaml;
  EXPECT_TRUE(has(padded("  hidden_size: 128", "c.yaml:4"))) << yaml;
  EXPECT_TRUE(has(padded("  head_dim: 32", "derived"))) << yaml;
  EXPECT_TRUE(has(padded("  beta1: 0.9", "default"))) << yaml;
  EXPECT_TRUE(has("  rope_scaling:")) << yaml;
  EXPECT_TRUE(has(padded("    rope_type: default", "default"))) << yaml;
}

TEST(ConfigTest, WhatAResumedRunMayChange) {
  Config before = parse_config(kBase, "c.yaml");
  auto changes = [&](const std::vector<std::string>& words) {
    return changed_keys(before, parse_config(kBase, "c.yaml", words));
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(changes({"model.hidden_size=256", "model.head_dim=32"}).fatal, Words{"model.hidden_size: 128 -> 256"});
  EXPECT_EQ(changes({"data.train=x"}).fatal, Words{"data.train: \"bible.txt\" -> \"x\""});
  EXPECT_EQ(changes({"run.seed=1"}).fatal, Words{"run.seed: 0 -> 1"});
  EXPECT_EQ(changes({"train.seq_len=32", "model.max_position_embeddings=64"}).fatal, Words{"train.seq_len: 64 -> 32"});
  EXPECT_EQ(changes({"train.global_batch=2"}).fatal, Words{"train.global_batch: 1 -> 2"});
  EXPECT_EQ(changes({"train.precision=bf16"}).fatal, Words{"train.precision: fp32 -> bf16"});
  ConfigChanges listed = changes({"run.dir=x", "run.resume=must", "optim.lr=1", "train.steps=7", "run.threads=1"});
  EXPECT_TRUE(listed.fatal.empty());
  EXPECT_EQ(listed.listed, (Words{"run.threads: 0 -> 1", "train.steps: 1500 -> 7", "optim.lr: 0.001 -> 1"}));
}

TEST(ConfigTest, FilesAreNamedAndNonAsciiPathsWork) {
  std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "xce caf\xC3\xA9 \xE6\x97\xA5";
  std::filesystem::create_directories(dir);
  std::string path = (dir / "\xC3\xBC.yaml").string();
  std::ofstream(path) << kBase << "optim:\n  lr: x\n";
  try {
    load_config(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), path + ":15:7: optim.lr: expected a number >= 0, got 'x'");
  }
  std::ofstream(path) << kBase;
  EXPECT_EQ(load_config(path).model.hidden_size, 128);
  for (const std::string& wrong : {(dir / "missing.yaml").string(), dir.string()}) {
    try {
      load_config(wrong);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_EQ(std::string(error.what()).substr(0, wrong.size() + 1), wrong + ":");
    }
  }
  std::filesystem::remove_all(dir);
}

std::string repository_file(const char* name) {
  std::ifstream stream(std::filesystem::path(__FILE__).parent_path() / "../.." / name);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(ConfigTest, EveryKeyIsDocumentedAsItIs) {
  std::string readme = repository_file("configs/README.md");
  for (const ConfigKeyHelp& row : config_help()) {
    std::string type;
    for (char c : row.type) type += c == '|' ? "\\|" : std::string(1, c);
    std::string line = "| `" + row.key + "` | " + type + " | " + row.default_value + " | " + row.help + " |\n";
    EXPECT_NE(readme.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace xce
