#include "src/core/free_blocks.h"

#include <algorithm>

namespace xce {
namespace {

// SplitMix64's finaliser (Steele, Lea & Flood 2014).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

void FreeBlocks::update(Node& node) {
  node.largest = std::max({node.size, largest(node.left), largest(node.right)});
}

std::pair<FreeBlocks::Tree, FreeBlocks::Tree> FreeBlocks::split(Tree tree, size_t offset) {
  if (!tree) return {};
  if (tree->offset < offset) {
    auto [low, high] = split(std::move(tree->right), offset);
    tree->right = std::move(low);
    update(*tree);
    return {std::move(tree), std::move(high)};
  }
  auto [low, high] = split(std::move(tree->left), offset);
  tree->left = std::move(high);
  update(*tree);
  return {std::move(low), std::move(tree)};
}

FreeBlocks::Tree FreeBlocks::join(Tree low, Tree high) {
  if (!low) return high;
  if (!high) return low;
  Tree& top = low->priority >= high->priority ? low : high;
  if (&top == &low)
    low->right = join(std::move(low->right), std::move(high));
  else
    high->left = join(std::move(low), std::move(high->left));
  update(*top);
  return std::move(top);
}

void FreeBlocks::insert(size_t offset, size_t size) {
  auto [low, high] = split(std::move(root_), offset);
  Tree block = std::make_unique<Node>(Node{offset, size, size, mixed(offset), nullptr, nullptr});
  root_ = join(join(std::move(low), std::move(block)), std::move(high));
}

void FreeBlocks::erase(size_t offset) {
  auto [low, rest] = split(std::move(root_), offset);
  auto [block, high] = split(std::move(rest), offset + 1);
  root_ = join(std::move(low), std::move(high));
}

std::optional<size_t> FreeBlocks::first_fit(size_t size) const {
  if (!root_ || root_->largest < size) return std::nullopt;
  const Node* node = root_.get();
  for (;;) {
    if (node->left && node->left->largest >= size)
      node = node->left.get();
    else if (node->size >= size)
      return node->offset;
    else
      node = node->right.get();
  }
}

}  // namespace xce
