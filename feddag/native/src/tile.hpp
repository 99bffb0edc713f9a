// The one dense kernel. A tile is P rows by N vectors of a matrix product, held in registers while the inner dimension
// runs: every element of the left operand is broadcast, every vector of the right one is read once for all P rows.
// Forward convolution, forward and both backward products of a linear layer are this tile with different strides.
#pragma once
#include <array>
#include <utility>

#include "simd.hpp"

namespace feddag {

// The inner dimension: `runs` runs of `length` elements; a step along it moves by `step` elements in the left operand,
// a new run starts `run_step` after the last one started. (A convolution has one run per kernel row.)
struct Inner {
    int runs, length;
    std::ptrdiff_t step, run_step;
};

// out[p][0 .. N * lanes) = start + sum over the inner dimension of left[p][...] * right[...][0 .. N * lanes)
template <class T, int P, int N>
void tile(const T* const* left, Inner inner, const T* right, const T* start, T* out, std::ptrdiff_t out_step) {
    constexpr int L = kLanes<T>;
    const T* row[P];
    Vec<T> sum[P][N];
    FEDDAG_UNROLL for (int p = 0; p < P; p++) {
        row[p] = left[p];
        FEDDAG_UNROLL for (int n = 0; n < N; n++) sum[p][n] = load(start + n * L);
    }
    for (int run = 0; run < inner.runs; run++) {
        std::ptrdiff_t i = run * inner.run_step;
        for (int t = 0; t < inner.length; t++, i += inner.step, right += N * L) {
            Vec<T> r[N];
            FEDDAG_UNROLL for (int n = 0; n < N; n++) r[n] = load(right + n * L);
            FEDDAG_UNROLL for (int p = 0; p < P; p++)
                FEDDAG_UNROLL for (int n = 0; n < N; n++) sum[p][n] += r[n] * row[p][i];
        }
    }
    FEDDAG_UNROLL for (int p = 0; p < P; p++)
        FEDDAG_UNROLL for (int n = 0; n < N; n++) store(out + p * out_step + n * L, sum[p][n]);
}

template <class T> using Tile = void (*)(const T* const*, Inner, const T*, const T*, T*, std::ptrdiff_t);

template <class T, int N, int... P> constexpr auto tiles(std::integer_sequence<int, P...>) {
    return std::array<Tile<T>, sizeof...(P)>{tile<T, P + 1, N>...};
}

// The most rows of a tile of one or two vectors; a narrow tile needs many rows to keep the multipliers busy.
constexpr int kMostRows = 12;
constexpr int tile_rows(int vectors) { return vectors == 1 ? kMostRows : kTileRows; }

// The tile for this many rows (from 1) and vectors (1 or 2).
template <class T> Tile<T> tile_for(int rows, int vectors) {
    static constexpr auto one = tiles<T, 1>(std::make_integer_sequence<int, tile_rows(1)>());
    static constexpr auto two = tiles<T, 2>(std::make_integer_sequence<int, tile_rows(2)>());
    return vectors == 1 ? one[rows - 1] : two[rows - 1];
}

// A right operand is stored in panels of one or two vectors; two when that divides the width.
template <class T> constexpr int panel_vectors(int width) { return width / kLanes<T> % 2 == 0 ? 2 : 1; }

}  // namespace feddag
