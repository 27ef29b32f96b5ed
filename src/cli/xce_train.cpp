// xce-train: parses the command line, runs one command, turns an Error into a message and its exit status.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "src/cli/commands.h"
#include "src/core/config_schema.h"
#include "src/core/log.h"
#include "src/core/number.h"

namespace {

constexpr const char* kFooter = R"(
Examples:
  xce-train configs/demo-cpu.yaml
  xce-train configs/demo-cpu.yaml run.dir=runs/mine train.steps=500
  xce-train --sample runs/mine/export --prompt "In the beginning"
  xce-train --sample runs/large/export --prompt-ids 1,1784,7026     # tools/sample_text.sh does this with text

Exit status: 0 done, 1 runtime error, 2 usage or configuration, 3 corrupt data or checkpoint, 4 too many non-finite steps,
5 communication, 6 disk, 75 stopped by a signal after saving.
)";

// A number of an option: all of the text, finite and inside the limits. CLI11's own conversion wraps what does not fit.
template <class T>
CLI::Validator number_within(xce::Limits limits) {
  auto wrong = [limits](const std::string& text) {
    T value = 0;
    if (xce::parse_number(text, &value) == xce::NumberText::kOk && limits.contain(static_cast<double>(value)))
      return std::string();
    const char* kind = std::is_same_v<T, double> ? "a number" : "a whole number";
    return xce::str("expected ", kind, limits.text(), ", got '", text, "'");
  };
  return CLI::Validator(wrong, "");
}

// Ids with commas between them.
std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    int64_t id = 0;
    if (xce::parse_number(word, &id) != xce::NumberText::kOk || id < 0 || id > std::numeric_limits<int32_t>::max())
      throw CLI::ValidationError(
          "--prompt-ids", xce::str("expected whole numbers >= 0 and <= 2147483647 with commas between them, got '",
                                   word, "' in '", text, "'"));
    ids.push_back(static_cast<int32_t>(id));
    begin = end + 1;
  }
  return ids;
}

// What the commands printed must have arrived: a full disk shows at the last flush.
void flush_stdout() {
  bool lost = std::fflush(stdout) != 0;
  std::string why = lost ? std::strerror(errno) : "an earlier write failed";
  if (lost || std::ferror(stdout))
    throw xce::Error(xce::ErrorCode::kDisk, "cannot write to the standard output: " + why);
}

int run(int argc, char** argv) {
  CLI::App app{"Trains Llama models without ever keeping the logits.", "xce-train"};
  app.footer(kFooter);
  app.set_version_flag("--version", "xce-train " XCE_VERSION);

  xce::TrainCommand train;
  xce::SampleCommand sample;
  bool dry_run = false, print_config = false, help_config = false;
  auto* config = app.add_option("CONFIG", train.config_path, "YAML file; configs/README.md lists its keys");
  app.add_option("OVERRIDES", train.overrides, "section.key=value, over what the file says");
  auto* dry = app.add_flag("--dry-run", dry_run, "check everything, print model, memory and cost, train nothing");
  auto* print = app.add_flag("--print-config", print_config, "print every key with its value and where that came from");
  auto* help = app.add_flag("--help-config", help_config, "list every key with type, default and meaning");
  app.add_option("--world", train.world, "ranks to plan for")->needs(dry)->check(number_within<int64_t>({1, 1 << 20}));
  dry->excludes(print)->excludes(help);
  print->excludes(help);
  auto* directory = app.add_option("--sample", sample.directory, "write text from this export or checkpoint directory");
  directory->excludes(config)->excludes(dry)->excludes(print)->excludes(help);
  auto* prompt = app.add_option("--prompt", sample.prompt, "what the text begins with")->needs(directory);
  app.add_option_function<std::string>(
         "--prompt-ids", [&sample](const std::string& text) { sample.prompt_ids = parse_ids(text); },
         "the same as token ids, 1,2,3: for models that are not byte-level")
      ->needs(directory)
      ->excludes(prompt);
  app.add_flag("--print-ids", sample.print_ids, "write ids, 1,2,3, where the model's bytes would be written")
      ->needs(directory);
  app.add_option("--tokens", sample.tokens, "tokens to write")
      ->capture_default_str()
      ->needs(directory)
      ->check(number_within<int64_t>({0, 1e9}));
  app.add_option("--temperature", sample.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->needs(directory)
      ->check(number_within<double>({0, std::numeric_limits<double>::infinity()}));
  app.add_option("--seed", sample.seed, "of the drawn tokens")
      ->capture_default_str()
      ->needs(directory)
      ->check(number_within<int64_t>({0, 1e15}));
  app.add_option("--threads", sample.threads, "CPU threads; 0: every core")
      ->capture_default_str()
      ->needs(directory)
      ->check(number_within<int64_t>({0, 1024}));

  app.add_option("--device", sample.device, "cpu or cuda; else a checkpoint's own, and the CPU for an export")
      ->needs(directory)
      ->check(CLI::IsMember({"cpu", "cuda"}));

  try {
    app.parse(argc, argv);
    if (sample.directory.empty() && !help_config && train.config_path.empty()) throw CLI::RequiredError("CONFIG");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(xce::ErrorCode::kUsage);
  }
  if (help_config) return xce::run_help_config();
  if (!sample.directory.empty()) return xce::run_sample(sample);
  if (print_config) return xce::run_print_config(train);
  if (dry_run) return xce::run_dry(train);
  return xce::run_train(train);
}

}  // namespace

int main(int argc, char** argv) {
  xce::start_log(xce::log_options_from_environment());
  try {
    int status = run(argc, argv);
    flush_stdout();
    return status;
  } catch (const xce::Error& e) {
    xce::log().error("{}", e.what());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    xce::log().error("out of memory");
  } catch (const std::exception& e) {
    xce::log().error("{}", e.what());
  }
  return static_cast<int>(xce::ErrorCode::kRuntime);
}
