// What a layer is: how one sample lies in memory, what it can learn, and the two passes.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "philox.hpp"
#include "simd.hpp"

namespace feddag {

// One sample: h x w pixels of c channels (h = w = 1 for a vector), channels last. In memory every pixel has `stored`
// channels (the surplus is zero), and the image has a border of `pad` zero pixels: the padding of the convolution that
// reads it. A series is an image of one row, its time: windows and padding reach along it alone.
struct Layout {
    int h = 1, w = 1, c = 1, stored = 1, pad = 0;
    bool flat = true, series = false;

    int width() const { return w + 2 * pad; }
    int pad_rows() const { return series ? 0 : pad; }
    int rows(int columns) const { return series ? 1 : columns; }  // of a window of so many columns
    // From one sample to the next. Samples a power of two apart would share the same few cache sets.
    std::size_t size() const {
        const std::size_t all = std::size_t(h + 2 * pad_rows()) * width() * stored;
        return all % 512 == 0 ? all + 16 : all;
    }
    std::size_t at(int y, int x) const { return (std::size_t(y + pad_rows()) * width() + x + pad) * stored; }
    int elements() const { return h * w * c; }
};

struct Optimizer {
    double lr = 0, momentum = 0, weight_decay = 0, clip = 0;  // clip = 0: no clipping
};

// A learnable array in the order its layer computes with; element i of PyTorch's order is value[offset[i]].
template <class T> struct Param {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<std::int32_t> offset;
    Buffer<T> value, grad, velocity, anchor;
    T proximal = 0;  // strength of the pull towards the anchor; there is an anchor only where this is above 0
    bool updated_in_backward = false;  // by its layer, unless gradients are clipped

    void lay_out(std::string full_name, std::vector<std::int64_t> torch_shape, std::size_t stored) {
        name = std::move(full_name);
        shape = std::move(torch_shape);
        std::size_t count = 1;
        for (auto n : shape) count *= std::size_t(n);
        offset.resize(count);
        value = Buffer<T>(stored);
    }
    void read(const T* from, Buffer<T>& into) const {
        for (std::size_t i = 0; i < offset.size(); i++) into[offset[i]] = from[i];
    }
    void write(T* to) const {
        for (std::size_t i = 0; i < offset.size(); i++) to[i] = value[offset[i]];
    }
    // SGD on [first, first + count), in whole vectors.
    void sgd_step(const Optimizer& sgd, std::size_t first, std::size_t count, const T* grad) {
        const T lr = T(sgd.lr), momentum = T(sgd.momentum), decay = T(sgd.weight_decay);
        const bool pull = anchor.size() && sgd.clip == 0;  // with clipping the pull is part of the clipped gradient
        for (std::size_t i = 0; i < count; i += kLanes<T>) {
            const Vec<T> w = load(&value[first + i]);
            Vec<T> d = load(grad + i);
            if (pull) d += proximal * (w - load(&anchor[first + i]));
            d += decay * w;
            if (velocity.size()) {
                d += momentum * load(&velocity[first + i]);
                store(&velocity[first + i], d);
            }
            store(&value[first + i], w - lr * d);
        }
    }
};

// What is the same for every layer in one pass over a batch.
struct Pass {
    int batch = 0;
    bool training = false;
    std::uint64_t step = 0;
    Key key{};
    const Optimizer* sgd = nullptr;  // set in the backward pass of a trainable part
};

template <class T> class Layer {
public:
    virtual ~Layer() = default;
    virtual void forward(const T* x, T* y, const Pass& pass) = 0;
    // From the gradient of y to the gradient of x (unless gx is null) and of the parameters (when pass.sgd is set).
    // gy may be overwritten.
    virtual void backward(const T* x, const T* y, T* gy, T* gx, const Pass& pass) = 0;
    // Called whenever the parameters have changed.
    virtual void refresh() {}
    // How it is computed, where there are several ways.
    virtual const char* way() const { return ""; }

    Layout in, out;
    std::vector<Param<T>> params;
};

}  // namespace feddag
