#include "src/io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <type_traits>

#include "kernels/base/check.h"
#include "src/io/json.h"

namespace xce {
namespace {

using Json = nlohmann::json;

struct TypeRow {
  StoredType type;
  const char* name;
  size_t bytes;
};
constexpr std::array<TypeRow, 13> kTypes = {{{StoredType::kF64, "F64", 8},
                                             {StoredType::kF32, "F32", 4},
                                             {StoredType::kF16, "F16", 2},
                                             {StoredType::kBf16, "BF16", 2},
                                             {StoredType::kI64, "I64", 8},
                                             {StoredType::kI32, "I32", 4},
                                             {StoredType::kI16, "I16", 2},
                                             {StoredType::kI8, "I8", 1},
                                             {StoredType::kU64, "U64", 8},
                                             {StoredType::kU32, "U32", 4},
                                             {StoredType::kU16, "U16", 2},
                                             {StoredType::kU8, "U8", 1},
                                             {StoredType::kBool, "BOOL", 1}}};

const TypeRow& row_of(StoredType type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row;
  throw Error(ErrorCode::kRuntime, str("expected a StoredType, got ", static_cast<int>(type)));
}

[[noreturn]] void corrupt(const fs::path& path, const std::string& reason) {
  throw Error(ErrorCode::kCorrupt, str(path.native(), ": ", reason));
}

uint64_t unsigned_number(const Json& value, const fs::path& path, const std::string& what) {
  if (!value.is_number_unsigned()) corrupt(path, str(what, " is ", value.dump(), ", expected an unsigned integer"));
  return value.get<uint64_t>();
}

// The bytes that type and shape ask for, products checked.
uint64_t checked_bytes(StoredType type, const Json& shape, StoredTensor& tensor, const fs::path& path) {
  uint64_t bytes = size_of(type);
  for (const Json& dimension : shape) {
    uint64_t n = unsigned_number(dimension, path, str("tensor ", tensor.name, ": a dimension"));
    if (n > INT64_MAX || __builtin_mul_overflow(bytes, n, &bytes) || bytes > INT64_MAX)
      corrupt(path, str("tensor ", tensor.name, ": shape ", shape.dump(), " overflows"));
    tensor.shape.push_back(static_cast<int64_t>(n));
  }
  return bytes;
}

// One entry of the header; `begin` is still relative to the end of the header.
StoredTensor parse_entry(const std::string& name, const Json& entry, const fs::path& path) {
  StoredTensor tensor;
  tensor.name = name;
  if (!entry.is_object()) corrupt(path, str("tensor ", name, ": not a JSON object"));
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) corrupt(path, str("tensor ", name, ": no ", key));
  const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  auto known = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return dtype == row.name; });
  if (known == kTypes.end()) corrupt(path, str("tensor ", name, ": unknown dtype ", dtype.dump()));
  tensor.type = known->type;
  if (!shape.is_array()) corrupt(path, str("tensor ", name, ": shape is not an array"));
  if (!offsets.is_array() || offsets.size() != 2) corrupt(path, str("tensor ", name, ": data_offsets is not a pair"));
  uint64_t want = checked_bytes(tensor.type, shape, tensor, path);
  tensor.begin = unsigned_number(offsets[0], path, str("tensor ", name, ": an offset"));
  uint64_t end = unsigned_number(offsets[1], path, str("tensor ", name, ": an offset"));
  if (end < tensor.begin || end - tensor.begin != want)
    corrupt(path, str("tensor ", name, ": offsets ", offsets.dump(), " do not hold ", want, " bytes"));
  tensor.bytes = want;
  return tensor;
}

// The tensors must follow one another from 0 to data_bytes without gap or overlap.
void check_cover(const std::map<std::string, StoredTensor>& tensors, uint64_t data_bytes, const fs::path& path) {
  std::vector<const StoredTensor*> order;
  for (const auto& [name, tensor] : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
  });
  uint64_t at = 0;
  for (const StoredTensor* tensor : order) {
    if (tensor->begin != at)
      corrupt(path, str("tensor ", tensor->name, " begins at ", tensor->begin, ", the one before it ends at ", at));
    if (tensor->bytes > data_bytes - at)
      corrupt(path, str("tensor ", tensor->name, " ends at ", at + tensor->bytes, ", the file holds ", data_bytes,
                        " bytes of tensors"));
    at += tensor->bytes;
  }
  if (at != data_bytes)
    corrupt(path, str("the tensors end at ", at, ", the file holds ", data_bytes, " bytes of them"));
}

float half_to_float(uint16_t half) {
  uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

struct Half {
  uint16_t bits;
  operator float() const { return half_to_float(bits); }
};

template <class From, class To>
To convert(From value) {
  if constexpr (std::is_same_v<From, To>)
    return value;
  else if constexpr (std::is_same_v<To, Bf16>)
    return Bf16(static_cast<float>(value));
  else if constexpr (std::is_same_v<From, double>)
    return static_cast<To>(value);
  else
    return static_cast<To>(static_cast<float>(value));
}

template <class From>
void read_as(const SafetensorsFile& file, const StoredTensor& tensor, int64_t first, int64_t count, DType dtype,
             void* out) {
  visit_dtype(dtype, [&]<class To>(std::type_identity<To>) {
    auto* to = static_cast<To*>(out);
    if constexpr (std::is_same_v<From, To>) {
      file.read_bytes(tensor, first * sizeof(From), to, count * sizeof(From));
    } else {
      constexpr int64_t kChunk = 65536;
      std::vector<From> chunk(std::min(kChunk, count));
      for (int64_t done = 0; done < count; done += kChunk) {
        int64_t n = std::min(kChunk, count - done);
        file.read_bytes(tensor, (first + done) * sizeof(From), chunk.data(), n * sizeof(From));
        for (int64_t i = 0; i < n; ++i) to[done + i] = convert<From, To>(chunk[i]);
      }
    }
  });
}

}  // namespace

size_t size_of(StoredType type) {
  return row_of(type).bytes;
}
const char* name_of(StoredType type) {
  return row_of(type).name;
}

StoredType stored_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return StoredType::kF32;
    case DType::kBf16:
      return StoredType::kBf16;
    case DType::kF64:
      return StoredType::kF64;
  }
  throw Error(ErrorCode::kRuntime, str("expected a DType, got ", static_cast<int>(dtype)));
}

int64_t StoredTensor::elements() const {
  return static_cast<int64_t>(bytes / size_of(type));
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
  uint64_t size = file_.size_bytes(), header_bytes = 0;
  if (size < 8) corrupt(path, str(size, " bytes are too few for a safetensors file"));
  file_.read(0, &header_bytes, 8);
  if (header_bytes > kMaxHeaderBytes)
    corrupt(path, str("a header of ", header_bytes, " bytes, at most ", kMaxHeaderBytes));
  if (header_bytes > size - 8) corrupt(path, str("a header of ", header_bytes, " bytes, the file has ", size));
  std::string text(header_bytes, '\0');
  file_.read(8, text.data(), text.size());
  if (text.empty() || text[0] != '{') corrupt(path, "the header does not begin with '{'");
  Json header = parse_json(text, str(path.native(), ": header"));
  uint64_t data_begin = 8 + header_bytes;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors_.emplace(name, parse_entry(name, entry, path));
      continue;
    }
    if (!entry.is_object()) corrupt(path, "__metadata__ is not a JSON object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) corrupt(path, str("__metadata__: ", key, " is not a string"));
      metadata_[key] = value.get<std::string>();
    }
  }
  check_cover(tensors_, size - data_begin, path);
  for (auto& [name, tensor] : tensors_) tensor.begin += data_begin;
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) corrupt(path(), str("no tensor ", name));
  return found->second;
}

void SafetensorsFile::read_bytes(const StoredTensor& tensor, uint64_t offset, void* out, uint64_t bytes) const {
  XCE_CHECK(offset <= tensor.bytes && bytes <= tensor.bytes - offset,
            str("a part of tensor ", tensor.name, " of ", tensor.bytes, " bytes"), str(offset, " + ", bytes));
  file_.read(tensor.begin + offset, out, bytes);
}

void SafetensorsFile::read(const StoredTensor& tensor, int64_t first, int64_t count, DType dtype, void* out) const {
  int64_t elements = tensor.elements();
  XCE_CHECK(first >= 0 && first <= elements && count >= 0 && count <= elements - first,
            str("a part of tensor ", tensor.name, " of ", elements, " elements"), str(first, " + ", count));
  switch (tensor.type) {
    case StoredType::kF64:
      return read_as<double>(*this, tensor, first, count, dtype, out);
    case StoredType::kF32:
      return read_as<float>(*this, tensor, first, count, dtype, out);
    case StoredType::kBf16:
      return read_as<Bf16>(*this, tensor, first, count, dtype, out);
    case StoredType::kF16:
      return read_as<Half>(*this, tensor, first, count, dtype, out);
    default:
      corrupt(path(), str("tensor ", tensor.name, " is ", name_of(tensor.type), ", expected a floating type"));
  }
}

void write_safetensors(const fs::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  header["__metadata__"]["format"] = "pt";
  std::vector<uint64_t> sizes;
  uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    uint64_t bytes = size_of(tensor.type);
    for (int64_t n : tensor.shape) {
      XCE_CHECK(n >= 0, str("dimensions >= 0 of tensor ", tensor.name), n);
      XCE_CHECK(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(n), &bytes), "a shape that fits 64 bits",
                shape_text(tensor.shape));
    }
    XCE_CHECK(!header.contains(tensor.name), "tensor names that differ", tensor.name);
    header[tensor.name] = {
        {"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
    sizes.push_back(bytes);
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data
  XCE_CHECK(text.size() <= SafetensorsFile::kMaxHeaderBytes, "a header of at most 100,000,000 bytes", text.size());

  AtomicFile out(path);
  uint64_t header_bytes = text.size();
  out.file().write(&header_bytes, 8);
  out.file().write(text.data(), text.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t before = out.file().size_bytes();
    if (tensors[i].data)
      out.file().write(tensors[i].data, sizes[i]);
    else if (tensors[i].produce)
      tensors[i].produce([&](const void* data, size_t bytes) { out.file().write(data, bytes); });
    XCE_CHECK(out.file().size_bytes() - before == sizes[i], str(sizes[i], " bytes of tensor ", tensors[i].name),
              out.file().size_bytes() - before);
  }
  out.commit();
}

}  // namespace xce
