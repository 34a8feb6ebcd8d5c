//! Macros that make the codec and the table of a type from the list of its fields.
//!
//! The lists are complete: a field or variant that is missing does not compile.

/// Declares types with named fields, in the order of the layout.
macro_rules! layout_struct {
    ($($type:ident { $($field:ident: $of:ty),+ $(,)? })+) => {$(
        impl DescriptorCodec for $type {
            #[inline]
            fn encode(&mut self, to: &mut Encoder<'_>) {
                let Self { $($field),+ } = self;
                $(<$of as DescriptorCodec>::encode($field, to);)+
            }

            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
                Ok(Self { $($field: <$of as DescriptorCodec>::decode(from)?),+ })
            }

            fn describe(table: &mut LayoutTable) -> String {
                if table.begin(stringify!($type)) {
                    let fields = vec![
                        $((stringify!($field), <$of as DescriptorCodec>::describe(table))),+
                    ];
                    table.add_fields(stringify!($type), fields);
                }
                stringify!($type).into()
            }
        }
    )+};
}

/// Declares types that are one number.
macro_rules! layout_number {
    ($($type:ident($of:ty))+) => {$(
        impl DescriptorCodec for $type {
            #[inline]
            fn encode(&mut self, to: &mut Encoder<'_>) {
                self.0.encode(to);
            }

            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
                Ok(Self(<$of as DescriptorCodec>::decode(from)?))
            }

            fn describe(table: &mut LayoutTable) -> String {
                <$of as DescriptorCodec>::describe(table)
            }
        }
    )+};
}

/// Declares enumerations: the byte of each variant, and its fields.
macro_rules! layout_enum {
    ($($type:ident { $(
        $tag:literal $variant:ident
            $(($($unnamed:ident: $unnamed_of:ty),+))?
            $({ $($named:ident: $named_of:ty),+ })?
    ),+ $(,)? })+) => {$(
        impl DescriptorCodec for $type {
            #[inline]
            fn encode(&mut self, to: &mut Encoder<'_>) {
                match self {$(
                    Self::$variant $(($($unnamed),+))? $({ $($named),+ })? => {
                        to.put(&[$tag]);
                        $($(<$unnamed_of as DescriptorCodec>::encode($unnamed, to);)+)?
                        $($(<$named_of as DescriptorCodec>::encode($named, to);)+)?
                    }
                )+}
            }

            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
                let [tag] = from.take_array()?;
                Ok(match tag {
                    $($tag => Self::$variant
                        $(($(<$unnamed_of as DescriptorCodec>::decode(from)?),+))?
                        $({ $($named: <$named_of as DescriptorCodec>::decode(from)?),+ })?,)+
                    _ => return Err(LayoutFault::UnknownTag),
                })
            }

            fn describe(table: &mut LayoutTable) -> String {
                if table.begin(stringify!($type)) {
                    let variants = vec![$((
                        $tag,
                        stringify!($variant),
                        vec![
                            $($((
                                stringify!($unnamed),
                                <$unnamed_of as DescriptorCodec>::describe(table),
                            )),+)?
                            $($((
                                stringify!($named),
                                <$named_of as DescriptorCodec>::describe(table),
                            )),+)?
                        ],
                    )),+];
                    table.add_variants(stringify!($type), variants);
                }
                stringify!($type).into()
            }
        }
    )+};
}

pub(super) use {layout_enum, layout_number, layout_struct};
