// Fuzz target (libFuzzer) of the C library on a CPU: from bytes, calls of every kind, mostly right and of small shapes,
// then spoilt in a word or two. A refused call has a message, a status of refusals, and wrote nothing; one that is
// taken wrote every element it was asked for and nothing else; one that was not spoilt is taken. tools/fuzz.sh runs it.
#include "tests/capi/fuzz_call.h"

namespace {

using namespace xce::fuzz;
using Linear = xce_linear_cross_entropy_args;
using Plain = xce_cross_entropy_args;

xce_context* make_context(int32_t threads) {
  xce_context* context = nullptr;
  expect(xce_context_create_cpu(threads, &context) == XCE_OK, "a context", xce_last_error());
  return context;
}
xce_context* context(Choices& choices) {
  static xce_context* const contexts[2] = {make_context(1), make_context(3)};
  return contexts[choices.rarely(8)];
}

template <class Args>
bool is_wrong(const Args& args) {
  return args.struct_size != sizeof(Args) || Call::is_wrong(args.loss) ||
         std::any_of(args.reserved, args.reserved + 4, [](uint64_t word) { return word != 0; });
}
bool is_wrong_linear(const Linear& a) {
  return is_wrong(a) || a.hidden < 1 || a.reserved_flag != 0 || (a.dbias && !a.bias) ||
         (a.accumulate_dweight && a.dweight_dtype && a.dweight_dtype != a.loss.dtype && !is_float(a.dweight_dtype));
}

// The workspace that a call asks for, of exactly that size; sometimes a little less. False: the call is refused.
template <class Args, class Query>
bool give_workspace(Call& call, Args& args, size_t budget, Query&& query) {
  size_t bytes = 77;
  args.workspace = nullptr, args.workspace_size_bytes = 0;
  if (query(&bytes) != XCE_OK) {
    expect(bytes == 77, "no size from a refused query", xce_last_error());
    return false;
  }
  expect(bytes <= budget, "a workspace within the budget");
  const bool too_small = bytes > 0 && call.c.rarely(32);
  const Wide given = Wide{bytes} - (too_small ? 1 + call.c.below(16) : 0);
  if (given < 0 || bytes > (size_t{1} << 24)) return false;
  call.arrays.give(args.workspace, "workspace", {1, given}, 1, Role::kScratch);
  args.workspace_size_bytes = static_cast<size_t>(given);
  call.spoilt = call.spoilt || too_small;
  return args.workspace != nullptr || bytes == 0;
}

// ---- Linear cross-entropy

void linear_scalars(Call& call, Linear& a, bool shard) {
  Choices& c = call.c;
  a.struct_size = sizeof(a);
  call.scalars(a.loss, shard);
  a.hidden = 1 + c.below(20);
  for (int64_t* ld : {&a.ldx, &a.ldw, &a.ld_dx, &a.ld_dweight}) *ld = c.below(2) ? a.hidden + c.below(3) : 0;
  const int32_t accum = accum_of(a.loss.dtype) == 8 ? XCE_FLOAT64 : XCE_FLOAT32;
  a.dx_dtype = c.pick<int32_t>({0, a.loss.dtype, accum});
  a.dweight_dtype = c.pick<int32_t>({0, accum, a.loss.dtype});
  a.accumulate_dx = c.rarely(3);
  a.accumulate_dweight = (a.dweight_dtype == 0 || a.dweight_dtype == accum) && c.rarely(3);
  a.allow_tf32 = c.rarely(4);
  if (c.rarely(4)) a.plan_vocab = a.loss.vocab + c.below(20);
  a.workspace_budget_bytes = c.pick<size_t>({0, 1 << 20, 1 << 16, 1 << 14, 1 << 12, 1});
}

void linear_arrays(Call& call, Linear& a, xce_pass pass, bool results) {
  Choices& c = call.c;
  const Wide n = a.loss.rows, h = a.hidden, v = a.loss.vocab;
  call.loss_arrays(a.loss, results, pass == XCE_BACKWARD);
  call.in(a.x, "x", {n, h, a.ldx}, a.loss.dtype);
  call.in(a.weight, "weight", {v, h, a.ldw}, a.loss.dtype);
  a.bias = nullptr;
  if (c.below(2)) call.in(a.bias, "bias", {1, v}, a.loss.dtype);
  a.dx = a.dweight = a.dbias = a.statistics = nullptr;
  if (pass == XCE_FORWARD) return;
  const int32_t accum = accum_of(a.loss.dtype) == 8 ? XCE_FLOAT64 : XCE_FLOAT32;
  const int32_t dx_type = a.dx_dtype ? a.dx_dtype : a.loss.dtype, dw_type = a.dweight_dtype ? a.dweight_dtype : accum;
  auto gradient = [&](void*& field, const char* name, const Layout& layout, int32_t dtype, int32_t added) {
    if (c.below(4) == 3) return;
    Buffer* buffer = call.arrays.give(field, name, layout, size_of(dtype), added ? Role::kAdded : Role::kOut);
    if (added) call.fill(buffer, dtype);
  };
  gradient(a.dx, "dx", {n, h, a.ld_dx}, dx_type, a.accumulate_dx);
  gradient(a.dweight, "dweight", {v, h, a.ld_dweight}, dw_type, a.accumulate_dweight);
  if (a.bias) gradient(a.dbias, "dbias", {1, v}, dw_type, a.accumulate_dweight);
}

void set_array(Call& call, void*& field, Wide rows, Role role) {
  Buffer* buffer = call.arrays.give(field, "statistics", {1, 7 * rows}, 8, role);
  if (role == Role::kIn) call.fill(buffer, XCE_FLOAT64);
}

void fuzz_linear(Call& call) {
  Choices& c = call.c;
  const xce_pass pass = c.pick({XCE_FORWARD, XCE_BACKWARD, XCE_FORWARD_BACKWARD});
  xce_context* const on = context(c);
  Linear a{};
  const bool shard = pass == XCE_BACKWARD || (pass == XCE_FORWARD && c.rarely(3));
  linear_scalars(call, a, shard);
  call.maybe_spoil(a);
  linear_arrays(call, a, pass, pass != XCE_BACKWARD && !shard);  // a forward of a shard gives statistics alone
  if (pass == XCE_FORWARD && (shard || c.rarely(3))) set_array(call, a.statistics, a.loss.rows, Role::kOut);
  if (pass == XCE_BACKWARD && a.loss.probabilities) set_array(call, a.statistics, a.loss.rows, Role::kIn);
  const size_t budget = a.workspace_budget_bytes ? a.workspace_budget_bytes : size_t{128} << 20;
  if (budget < size_t{1} << 20) call.spoilt = true;  // it may be too small
  give_workspace(call, a, budget,
                 [&](size_t* bytes) { return xce_linear_cross_entropy_workspace_bytes(on, pass, &a, bytes); });
  call.arrays.seal();
  const bool wrong = is_wrong_linear(a) || Call::lacks_targets(a.loss);
  if (c.rarely(4)) {  // on a CPU it only looks at the arguments
    const xce_status status = xce_linear_cross_entropy_prepare(on, pass, &a);
    expect(status != XCE_OK || !wrong, "a wrong call to be refused by prepare");
    call.arrays.expect_untouched();
  }
  if (pass == XCE_FORWARD)
    call.finish(xce_linear_cross_entropy_forward(on, &a), "xce_linear_cross_entropy_forward", wrong);
  else if (pass == XCE_BACKWARD)
    call.finish(xce_linear_cross_entropy_backward(on, &a), "xce_linear_cross_entropy_backward", wrong);
  else
    call.finish(xce_linear_cross_entropy_forward_backward(on, &a), "xce_linear_cross_entropy_forward_backward", wrong);
}

// All chunks of a shard, or of a whole vocabulary, as one rank does it.
void fuzz_begin_finish(Call& call) {
  Choices& c = call.c;
  xce_context* const on = context(c);
  Linear a{};
  linear_scalars(call, a, true);
  call.maybe_spoil(a);
  linear_arrays(call, a, XCE_BEGIN_FINISH, true);
  const size_t budget = a.workspace_budget_bytes ? a.workspace_budget_bytes : size_t{128} << 20;
  if (budget < size_t{1} << 20) call.spoilt = true;
  give_workspace(call, a, budget, [&](size_t* bytes) {
    return xce_linear_cross_entropy_workspace_bytes(on, XCE_BEGIN_FINISH, &a, bytes);
  });
  void* set = nullptr;
  const Wide rows = std::clamp<Wide>(a.loss.rows, 0, 1000);
  call.arrays.give(set, "a chunk's statistics", {1, 7 * rows}, 8, Role::kScratch);
  call.arrays.seal();
  const bool wrong = is_wrong_linear(a) || Call::lacks_targets(a.loss);
  int64_t count = -7, rows_per_chunk = -7;
  if (xce_linear_cross_entropy_chunks(on, &a, &count, &rows_per_chunk) != XCE_OK) {
    expect(count == -7 && rows_per_chunk == -7, "nothing from a refused query", xce_last_error());
    call.finish(xce_linear_cross_entropy_begin(on, &a, 0, set), "xce_linear_cross_entropy_begin", true);
    return;
  }
  expect(!is_wrong_linear(a), "a wrong query to be refused");
  expect(count >= 1 && rows_per_chunk >= 0, "chunks");
  if (c.rarely(8)) {
    const int64_t chunk = c.pick<int64_t>({-1, count, INT64_MAX, INT64_MIN});
    call.finish(xce_linear_cross_entropy_finish(on, &a, chunk, set), "xce_linear_cross_entropy_finish", true);
  }
  for (int64_t chunk = 0; chunk < count; ++chunk) {
    const xce_status began = xce_linear_cross_entropy_begin(on, &a, chunk, set);
    if (began != XCE_OK) return void(call.finish(began, "xce_linear_cross_entropy_begin", wrong));
    const xce_status status = xce_linear_cross_entropy_finish(on, &a, chunk, set);
    if (status != XCE_OK || chunk + 1 == count)
      call.finish(status, "xce_linear_cross_entropy_finish", wrong || status != XCE_OK);
    expect(status == XCE_OK, "finish to take what begin took", xce_last_error());
  }
}

// ---- Cross-entropy over given logits

void fuzz_plain(Call& call) {
  Choices& c = call.c;
  const xce_pass pass = c.pick({XCE_FORWARD, XCE_BACKWARD, XCE_FORWARD_BACKWARD});
  xce_context* const on = context(c);
  Plain a{};
  a.struct_size = sizeof(a);
  const bool shard = pass == XCE_BACKWARD || (pass == XCE_FORWARD && c.rarely(3));
  call.scalars(a.loss, shard);
  for (int64_t* ld : {&a.ld, &a.ld_dlogits}) *ld = c.below(2) ? a.loss.vocab + c.below(3) : 0;
  const bool in_place = pass != XCE_FORWARD && c.rarely(3);
  if (in_place) a.ld_dlogits = a.ld;
  call.maybe_spoil(a);
  call.loss_arrays(a.loss, pass != XCE_BACKWARD && !shard, pass == XCE_BACKWARD);
  const Wide n = a.loss.rows, v = a.loss.vocab;
  a.statistics = a.dlogits = nullptr;
  if (in_place) {
    call.fill(call.arrays.give(a.dlogits, "dlogits", {n, v, a.ld_dlogits}, size_of(a.loss.dtype), Role::kAdded),
              a.loss.dtype);
    a.logits = a.dlogits;
  } else {
    call.in(a.logits, "logits", {n, v, a.ld}, a.loss.dtype);
    if (pass != XCE_FORWARD)
      call.arrays.give(a.dlogits, "dlogits", {n, v, a.ld_dlogits}, size_of(a.loss.dtype), Role::kOut);
  }
  if (pass == XCE_FORWARD && (shard || c.rarely(3))) set_array(call, a.statistics, n, Role::kOut);
  if (pass == XCE_BACKWARD && a.loss.probabilities) set_array(call, a.statistics, n, Role::kIn);
  give_workspace(call, a, SIZE_MAX,
                 [&](size_t* bytes) { return xce_cross_entropy_workspace_bytes(on, pass, &a, bytes); });
  call.arrays.seal();
  const bool wrong = is_wrong(a) || Call::lacks_targets(a.loss);
  if (pass == XCE_FORWARD)
    call.finish(xce_cross_entropy_forward(on, &a), "xce_cross_entropy_forward", wrong);
  else if (pass == XCE_BACKWARD)
    call.finish(xce_cross_entropy_backward(on, &a), "xce_cross_entropy_backward", wrong);
  else
    call.finish(xce_cross_entropy_forward_backward(on, &a), "xce_cross_entropy_forward_backward", wrong);
}

// ---- Counts and statistics

void fuzz_count(Call& call) {
  xce_loss_count_args a{};
  a.struct_size = sizeof(a);
  call.scalars(a.loss, true);
  a.accumulate = call.c.rarely(3);
  call.maybe_spoil(a);
  call.loss_arrays(a.loss, false, false);
  const Role role = a.accumulate ? Role::kAdded : Role::kOut;
  for (auto [field, name] : {std::pair{&a.loss.n_valid, "n_valid"},
                             {&a.loss.out_of_range, "out_of_range"},
                             {&a.loss.first_out_of_range, "first_out_of_range"}})
    if (call.c.below(4) != 3) call.fill_counts(call.arrays.give(*field, name, {}, 8, role), role == Role::kAdded);
  if (call.c.below(4) != 3)
    call.fill_counts(call.arrays.give(a.loss.weight_sum, "weight_sum", {}, 8, role), role == Role::kAdded);
  call.arrays.seal();
  call.finish(xce_loss_count(context(call.c), &a), "xce_loss_count",
              is_wrong(a) || Call::lacks_targets(a.loss) || a.reserved_flag != 0);
}

void fuzz_statistics(Call& call) {
  Choices& c = call.c;
  xce_context* const on = context(c);
  xce_loss_statistics_args a{};
  a.struct_size = sizeof(a);
  call.scalars(a.loss, true);
  a.count = 1 + c.below(4), a.rows = c.below(9);
  const bool merge = c.below(2);
  if (merge) a.loss.ld_probabilities = 0, a.loss.probability_dtype = 0;  // no arrays of the loss
  call.maybe_spoil(a);
  if (!merge) call.loss_arrays(a.loss, true, false);
  a.sets = a.statistics = nullptr;
  size_t bytes = 77;
  const xce_status query = xce_loss_statistics_bytes(on, &a, &bytes);
  expect(query != XCE_OK || Wide{bytes} == Wide{56} * a.rows, "the size of a set");
  expect(query == XCE_OK || bytes == 77, "no size from a refused query", xce_last_error());
  if (!merge) {
    set_array(call, a.statistics, a.loss.rows, Role::kIn);
    call.arrays.seal();
    call.finish(xce_loss_from_statistics(on, &a), "xce_loss_from_statistics",
                is_wrong(a) || Call::lacks_targets(a.loss));
    return;
  }
  const Wide values = a.count > 0 && a.rows > 0 ? Wide{7} * a.count * a.rows : 0;
  if (c.rarely(3)) {
    call.fill(call.arrays.give(a.statistics, "sets", {1, values}, 8, Role::kScratch), XCE_FLOAT64);
    a.sets = a.statistics;
  } else {
    call.in(a.sets, "sets", {1, values}, XCE_FLOAT64);
    set_array(call, a.statistics, a.rows, Role::kOut);
  }
  call.arrays.seal();
  call.finish(xce_loss_merge_statistics(on, &a), "xce_loss_merge_statistics", is_wrong(a) || a.count < 1 || a.rows < 0);
}

// ---- Contexts

void fuzz_context(Call& call) {
  Choices& c = call.c;
  xce_context* const on = c.rarely(8) ? nullptr : context(c);
  const int32_t word = c.pick<int32_t>({0, 1, 2, -1, 3, 4, 5, 99, INT32_MIN});
  auto taken = [&](xce_status status, bool right, const char* function) {
    expect((status == XCE_OK) == (right && on), "the right calls to be taken, and no other", function);
  };
  taken(xce_loss_prepare(on, word), is_float(word), "xce_loss_prepare");
  taken(xce_context_set_tuning(on, word), word == 0 || word == 1, "xce_context_set_tuning");
  taken(xce_context_set_stream(on, word ? &call : nullptr), word == 0, "xce_context_set_stream");
  Buffer text("text", {1, c.below(4)}, 1, Role::kOut);
  text.seal();
  size_t bytes = 77;
  const xce_status status = xce_context_tuning_text(on, reinterpret_cast<char*>(text.begin()), text.bytes(), &bytes);
  taken(status, text.bytes() >= 1, "xce_context_tuning_text");
  expect(status == XCE_OK ? bytes == 1 && text.begin()[0] == 0 : bytes == 77, "an empty text of a CPU");
  if (status != XCE_OK) text.expect_untouched();
  xce_context* made = on;
  const int32_t threads = c.pick<int32_t>({1, -1, 513, INT32_MAX, INT32_MIN});
  expect((xce_context_create_cpu(threads, &made) == XCE_OK) == (threads == 1), "1 .. 512 threads");
  expect((made != nullptr) == (threads == 1), "no context from a refused call");
  xce_context_destroy(made);
  expect(xce_status_string(word) != nullptr, "a text of any status");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  Call call(choices);
  switch (choices.below(9)) {
    case 0:
    case 1:
    case 2:
      fuzz_linear(call);
      break;
    case 3:
      fuzz_begin_finish(call);
      break;
    case 4:
    case 5:
      fuzz_plain(call);
      break;
    case 6:
      fuzz_count(call);
      break;
    case 8:
      fuzz_context(call);
      break;
    default:
      fuzz_statistics(call);
  }
  return 0;
}
