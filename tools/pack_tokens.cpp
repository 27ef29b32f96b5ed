// Raw ids from the standard input into a token file, and the check of token files: the format has one writer and one
// reader, src/data/token_file.h, whatever program makes the ids.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "src/core/number.h"
#include "src/data/token_file.h"

namespace {

constexpr const char* kUsage = R"(usage:
  pack_tokens OUT.tok VOCABULARY COUNT   writes COUNT ids read from the standard input, 4 bytes each, little-endian
  pack_tokens --verify FILE.tok...       reads token files whole: checksum and every id; prints what they hold

Exit status: 0 done, 2 usage, 3 an id outside the vocabulary or a damaged file, 6 disk.
)";

int64_t number(const char* what, const std::string& text, int64_t most) {
  int64_t value = 0;
  if (xce::parse_number(text, &value) != xce::NumberText::kOk || value < 1 || value > most)
    throw xce::Error(xce::ErrorCode::kUsage,
                     xce::str(what, ": expected a whole number >= 1 and <= ", most, ", got '", text, "'"));
  return value;
}

void pack(const std::filesystem::path& path, int64_t vocab_size, int64_t count) {
  xce::TokenFileWriter writer(path, vocab_size);
  std::vector<int32_t> ids(1 << 16);
  while (size_t bytes = std::fread(ids.data(), 1, ids.size() * sizeof(int32_t), stdin)) {
    if (bytes % sizeof(int32_t) != 0)
      throw xce::Error(xce::ErrorCode::kUsage, "the standard input ends inside an id of 4 bytes");
    writer.append(std::span(ids).first(bytes / sizeof(int32_t)));
  }
  // A writer that was killed also ends the input.
  if (writer.count() != count)
    throw xce::Error(xce::ErrorCode::kUsage,
                     xce::str("the standard input held ", writer.count(), " ids, COUNT is ", count));
  writer.commit();
}

void verify(const std::filesystem::path& path) {
  xce::TokenFileReader reader(path);
  reader.verify();
  const xce::TokenFileHeader& header = reader.header();
  std::printf("%s: %lld tokens, vocabulary %lld, %d bytes an id, checksum %016llx\n", path.c_str(),
              static_cast<long long>(header.count), static_cast<long long>(header.vocab_size), header.id_bytes,
              static_cast<unsigned long long>(header.checksum));
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 1 && words[0] == "--help") {
    std::fputs(kUsage, stdout);
  } else if (words.size() >= 2 && words[0] == "--verify") {
    for (size_t i = 1; i < words.size(); ++i) verify(words[i]);
  } else if (words.size() == 3 && words[0].substr(0, 2) != "--") {
    pack(words[0], number("VOCABULARY", words[1], std::numeric_limits<int32_t>::max()),
         number("COUNT", words[2], std::numeric_limits<int64_t>::max()));
  } else {
    std::fputs(kUsage, stderr);
    return static_cast<int>(xce::ErrorCode::kUsage);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const xce::Error& e) {
    std::fprintf(stderr, "pack_tokens: error: %s\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "pack_tokens: error: %s\n", e.what());
    return static_cast<int>(xce::ErrorCode::kRuntime);
  }
}
