#include "kernels/take_slot.h"

#include <algorithm>

namespace xce {

void check_args(const TakeSlot& args) {
  XCE_CHECK(args.n >= 0, "TakeSlot n >= 0", args.n);
  XCE_CHECK(args.count >= 1, "TakeSlot count >= 1", args.count);
  XCE_CHECK(args.slots && args.state && args.out, "TakeSlot slots, state and out", "null");
}

void launch(const CpuExec&, const TakeSlot& args) {
  check_args(args);
  std::copy_n(args.slots + args.state->step % args.count * args.n, args.n, args.out);
}

}  // namespace xce
