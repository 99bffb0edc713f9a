// Dropout's random numbers: Philox4x64 with ten rounds, the generator behind numpy.random.Philox.
// A draw is a pure function of (key, layer, step, element), so any trainer in any language draws the same mask.
#pragma once
#include <array>
#include <cstdint>

namespace feddag {

using Key = std::array<std::uint64_t, 2>;
using Block = std::array<std::uint64_t, 4>;

inline Block philox(Block counter, Key key) {
    for (int round = 0; round < 10; round++) {
        const unsigned __int128 a = static_cast<unsigned __int128>(0xD2E7470EE14C6C93u) * counter[0];
        const unsigned __int128 b = static_cast<unsigned __int128>(0xCA5A826395121157u) * counter[2];
        counter = {std::uint64_t(b >> 64) ^ counter[1] ^ key[0], std::uint64_t(b),
                   std::uint64_t(a >> 64) ^ counter[3] ^ key[1], std::uint64_t(a)};
        key[0] += 0x9E3779B97F4A7C15u;
        key[1] += 0xBB67AE8584CAA73Bu;
    }
    return counter;
}

// Sixteen-bit draws of one dropout layer in one step, lowest bits of every word first; `draws` has room for a multiple
// of 16. The first block has counter 1: numpy counts before it draws.
inline void dropout_draws(Key key, std::uint64_t layer, std::uint64_t step, std::size_t count, std::uint16_t* draws) {
    for (std::size_t block = 0; block * 16 < count; block++) {
        const Block words = philox({block + 1, layer, step, 0}, key);
        for (int word = 0; word < 4; word++)
            for (int part = 0; part < 4; part++)
                draws[block * 16 + word * 4 + part] = std::uint16_t(words[word] >> 16 * part);
    }
}

}  // namespace feddag
