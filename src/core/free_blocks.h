// The free blocks of an arena, ordered by offset: a treap (Seidel & Aragon 1996) whose nodes know the largest block
// below them, so that the first block that is large enough is found on one way down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace xce {

class FreeBlocks {
 public:
  // Each takes O(log n) steps for n blocks, on average over the nodes' pseudo-random priorities.
  void insert(size_t offset, size_t size);  // no block of this offset is there
  void erase(size_t offset);                // nothing, if there is none
  // The lowest offset of a block of at least this size.
  std::optional<size_t> first_fit(size_t size) const;

 private:
  struct Node;
  using Tree = std::unique_ptr<Node>;
  struct Node {
    size_t offset, size;
    size_t largest;     // size of the largest block of this tree
    uint64_t priority;  // not below the children's; a hash of the offset: the same program builds the same tree
    Tree left, right;
  };
  static size_t largest(const Tree& tree) { return tree ? tree->largest : 0; }
  static void update(Node& node);
  static std::pair<Tree, Tree> split(Tree tree, size_t offset);  // blocks below offset, the others
  static Tree join(Tree low, Tree high);

  Tree root_;
};

}  // namespace xce
