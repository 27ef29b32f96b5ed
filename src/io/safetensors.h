// The safetensors format (huggingface/safetensors): 8 bytes header length, a JSON header, then the tensors without
// gaps. The reader takes nothing on trust: lengths, offsets and products are checked before use, names are unique, the
// tensors cover the file exactly. kCorrupt names file and reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "src/core/file.h"

namespace xce {

enum class StoredType : int32_t { kF64, kF32, kF16, kBf16, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool };
size_t size_of(StoredType type);
const char* name_of(StoredType type);  // as in the file: "F32", "BF16", ...
StoredType stored_type(DType dtype);

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, bytes = 0;  // within the file
  int64_t elements() const;
};
std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 3]"

class SafetensorsFile {
 public:
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const StoredTensor& at(const std::string& name) const;  // missing: kCorrupt
  void read_bytes(const StoredTensor& tensor, uint64_t offset, void* out, uint64_t bytes) const;
  // Elements [first, first + count) as dtype; only floating types convert, else kCorrupt. Narrowing rounds to nearest
  // even.
  void read(const StoredTensor& tensor, int64_t first, int64_t count, DType dtype, void* out) const;

 private:
  InputFile file_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to write: `produce` hands its bytes, in order and in any pieces, to the sink. Or data points at all of them.
struct TensorToWrite {
  using Sink = std::function<void(const void* data, size_t bytes)>;
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::function<void(const Sink& sink)> produce{};  // used when data is null
};
// Atomic. {"format": "pt"} is always among the metadata. A doubled name or a wrong byte count is kRuntime.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace xce
