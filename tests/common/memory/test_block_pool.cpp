#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "common/base/error.hpp"
#include "common/memory/block_pool.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Blocks that are only counted: those that have been made and not freed, by address.
struct System {
  void* make(std::int64_t bytes)
  {
    if (fails) throw Error("no memory");
    ++made;
    held_bytes += bytes;
    void* const block = reinterpret_cast<void*>(static_cast<std::uintptr_t>(made));
    blocks[block] = bytes;
    return block;
  }
  void free(void* block)
  {
    held_bytes -= blocks.at(block);  // an error for a block that is none
    blocks.erase(block);
  }
  BlockPool pool()
  {
    return {[this](std::int64_t bytes) { return make(bytes); }, [this](void* block) { free(block); }};
  }

  std::map<void*, std::int64_t> blocks;
  std::int64_t made = 0, held_bytes = 0;
  bool fails = false;
};

}  // namespace

TEST_CASE("BlockPool: hands out the most recently freed block of the size, to one owner at a time")
{
  System system;
  {
    BlockPool pool = system.pool();
    void* const first = pool.take(20);
    void* const second = pool.take(20);
    void* const other = pool.take(30);
    CHECK(system.made == 3);
    pool.give_back(first, 20);
    pool.give_back(second, 20);
    pool.give_back(other, 30);
    CHECK(pool.take(30) == other);
    CHECK(pool.take(20) == second);
    CHECK(pool.take(20) == first);
    CHECK(system.made == 3);
    pool.give_back(first, 20);
    CHECK(pool.take(20) == first);
    pool.give_back(first, 20);
    pool.give_back(second, 20);
    pool.give_back(other, 30);
    CHECK(system.held_bytes == 70);
  }
  CHECK(system.held_bytes == 0);
}

TEST_CASE("BlockPool: returns the oldest kept blocks to the system first, and no more than needed")
{
  System system;
  BlockPool pool = system.pool();
  void* const stays = pool.take(40);
  void* const first = pool.take(20);
  void* const second = pool.take(10);
  pool.give_back(first, 20);
  pool.give_back(second, 10);
  void* const third = pool.take(15);  // 40 + 15 in use, 20 + 10 kept: more than the 70 that were in use and 70 / 8
  CHECK(system.blocks.count(first) == 0);
  CHECK(system.blocks.count(second) == 1);
  CHECK(system.held_bytes == 65);
  void* const fourth = pool.take(17);  // 72 in use and 10 kept: more than 72 + 72 / 8
  CHECK(system.blocks.count(second) == 0);
  CHECK(system.held_bytes == 72);
  pool.give_back(third, 15);
  void* const fifth = pool.take(9);  // 66 in use and 15 kept: no more than 81
  CHECK(system.blocks.count(third) == 1);
  CHECK(system.held_bytes == 81);
  pool.give_back(stays, 40);
  pool.give_back(fourth, 17);
  pool.give_back(fifth, 9);
}

TEST_CASE("BlockPool: blocks of alternating sizes are allocated once")
{
  // A step of lesson 06: two large blocks at once, then one of them and some small ones.
  System system;
  BlockPool pool = system.pool();
  void* const stays = pool.take(800);
  for (int step = 0; step < 3; ++step) {
    void* const one = pool.take(100);
    void* const two = pool.take(100);
    pool.give_back(two, 100);
    std::vector<void*> small;
    for (int i = 0; i < 6; ++i) small.push_back(pool.take(20));
    for (void* const block : small) pool.give_back(block, 20);
    pool.give_back(one, 100);
    CHECK(system.made == 9);
    CHECK(system.held_bytes == 800 + 2 * 100 + 6 * 20);
  }
  pool.give_back(stays, 800);
}

TEST_CASE("BlockPool: a block that cannot be made does not count")
{
  System system;
  BlockPool pool = system.pool();
  void* const first = pool.take(10);
  void* const second = pool.take(10);
  system.fails = true;
  CHECK_THROWS_AS(pool.take(1000), Error);
  system.fails = false;
  pool.give_back(first, 10);
  pool.give_back(second, 10);
  void* const other = pool.take(5);
  CHECK(system.held_bytes == 15);  // 25 if the 1000 counted as in use or as the most
  pool.give_back(other, 5);
}

TEST_CASE("BlockPool: never holds more than an eighth above the peak in use, in any order of calls")
{
  System system;
  BlockPool pool = system.pool();
  std::mt19937 random(1);
  std::vector<void*> used;
  std::int64_t used_bytes = 0, most_bytes = 0;
  for (int step = 0; step < 5000; ++step) {
    if (used.empty() || random() % 2 == 0) {
      const std::int64_t bytes = 1 + random() % 12;
      used.push_back(pool.take(bytes));
      used_bytes += bytes;
      REQUIRE(system.blocks.at(used.back()) == bytes);
    } else {
      const std::size_t i = random() % used.size();
      const std::int64_t bytes = system.blocks.at(used[i]);
      pool.give_back(used[i], bytes);
      used_bytes -= bytes;
      used[i] = used.back();
      used.pop_back();
    }
    most_bytes = std::max(most_bytes, used_bytes);
    REQUIRE(system.held_bytes <= most_bytes + most_bytes / 8);
    REQUIRE(system.held_bytes >= used_bytes);
  }
  CHECK(system.made < 1500);  // of some 2,500 that were asked for
  for (void* const block : used) pool.give_back(block, system.blocks.at(block));
}
